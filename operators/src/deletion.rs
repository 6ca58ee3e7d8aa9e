//! Deletions by controllers, which tell of those that the API server refuses.

use kube::api::DynamicObject;
use kube::{Api, Error};
use vireo_client::events::{EventRecorder, Reason, Regarding};
use vireo_client::write;

/// What a controller deletes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deletion<'a> {
    /// What it is, for people.
    pub(crate) what: &'a str,
    /// Its name.
    pub(crate) name: &'a str,
    /// Its UID: another object of this name stays.
    pub(crate) uid: &'a str,
}

impl Deletion<'_> {
    /// Deletes it, as [`write::delete`] does. If the API server refuses, an event about the object `regarding` says why.
    pub(crate) async fn carry_out(
        self,
        api: &Api<DynamicObject>,
        recorder: &EventRecorder,
        regarding: Regarding<'_>,
    ) -> Result<Option<DynamicObject>, Error> {
        let Self { what, name, uid } = self;
        let deleted = write::delete(api, name, uid).await;
        // A conflict, too many requests and an API server that does not answer pass by themselves.
        if let Err(Error::Api(status)) = &deleted
            && ![409, 429].contains(&status.code)
        {
            let text = format!("Error deleting {what} {name}: {}", status.message);
            recorder.publish(regarding, Reason::FailedDelete, text).await;
        }
        deleted
    }
}
