//! A limit of the requests to the API server: `rateLimiter` of the KubeVirt object's configuration of a component.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tower::{Layer, Service};
use vireo_api::v1::ReloadableComponentConfiguration;

/// How soon a request that waits looks whether the limit has changed.
const LOOK: Duration = Duration::from_secs(1);

/// The fields of the limit.
const AT: [&str; 2] = [
    "restClient.rateLimiter.tokenBucketRateLimiter.qps",
    "restClient.rateLimiter.tokenBucketRateLimiter.burst",
];

/// How many requests a client may send.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    /// In a second, on average.
    per_second: f64,
    /// At once.
    burst: f64,
}

impl RateLimit {
    /// Reads the setting of a component; none where it sets no limit.
    ///
    /// # Errors
    /// The field that is not valid, and why.
    pub fn read(
        given: Option<&ReloadableComponentConfiguration>,
    ) -> Result<Option<Self>, (&'static str, String)> {
        let client = given.and_then(|given| given.rest_client.as_ref());
        let bucket = client.and_then(|client| client.rate_limiter.as_ref());
        let Some(bucket) = bucket.and_then(|limiter| limiter.token_bucket_rate_limiter.as_ref()) else {
            return Ok(None);
        };
        let (per_second, burst) = (bucket.qps, bucket.burst);
        if !per_second.is_finite() || per_second <= 0.0 {
            return Err((AT[0], format!("Invalid value: {per_second}: must be a number above 0")));
        }
        match u32::try_from(burst).ok().filter(|burst| *burst > 0) {
            Some(burst) => Ok(Some(Self { per_second, burst: f64::from(burst) })),
            None => Err((AT[1], format!("Invalid value: {burst}: must be greater than or equal to 1"))),
        }
    }
}

/// The tokens of a limit, of which each request takes one.
#[derive(Debug, Default)]
struct Bucket {
    limit: Option<RateLimit>,
    tokens: f64,
    /// When the tokens were counted.
    at: Option<Instant>,
}

impl Bucket {
    /// How long there is no token.
    fn wait(&mut self, now: Instant) -> Option<Duration> {
        let RateLimit { per_second, burst } = self.limit?;
        let since = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.tokens = since.as_secs_f64().mul_add(per_second, self.tokens).min(burst);
        self.at = Some(now);
        let lacks = 1.0 - self.tokens;
        (lacks > 0.0).then(|| Duration::try_from_secs_f64(lacks / per_second).unwrap_or(LOOK).min(LOOK))
    }
}

/// Limits the requests of clients that share it. Without a limit, none waits.
#[derive(Debug, Clone, Default)]
pub struct RateLimiter(Arc<Mutex<Bucket>>);

impl RateLimiter {
    fn bucket(&self) -> MutexGuard<'_, Bucket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has requests from now on keep to a limit, or to none.
    pub fn set(&self, limit: Option<RateLimit>) {
        let mut bucket = self.bucket();
        if bucket.limit != limit {
            *bucket = Bucket { limit, tokens: limit.map_or(0.0, |limit| limit.burst), at: None };
        }
    }
}

impl<S> Layer<S> for RateLimiter {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limiter: self.clone(), sleep: None }
    }
}

/// A service whose requests keep to a limit.
#[derive(Debug)]
pub struct Limited<S> {
    inner: S,
    limiter: RateLimiter,
    /// Until there may be a token.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<S: Service<R>, R> Service<R> for Limited<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        loop {
            let Some(wait) = self.limiter.bucket().wait(Instant::now()) else { break };
            // A wait shorter than the clock's tick would be none.
            let wait = wait.max(Duration::from_millis(1));
            let sleep = self.sleep.insert(Box::pin(tokio::time::sleep(wait)));
            std::task::ready!(sleep.as_mut().poll(context));
        }
        self.sleep = None;
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        let mut bucket = self.limiter.bucket();
        if bucket.limit.is_some() {
            bucket.tokens -= 1.0;
        }
        drop(bucket);
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use super::*;

    fn read(bucket: Value) -> Result<Option<RateLimit>, (&'static str, String)> {
        let given = json!({"restClient": {"rateLimiter": {"tokenBucketRateLimiter": bucket}}});
        RateLimit::read(Some(&serde_json::from_value(given).unwrap()))
    }

    #[test]
    fn a_limit_is_a_rate_and_a_burst() {
        assert_eq!(RateLimit::read(None), Ok(None));
        assert_eq!(read(Value::Null), Ok(None));
        let limit = RateLimit { per_second: 0.5, burst: 3.0 };
        assert_eq!(read(json!({"qps": 0.5, "burst": 3})), Ok(Some(limit)));
        for (given, field) in [
            (json!({"burst": 1}), "qps"),
            (json!({"qps": 1}), "burst"),
            (json!({"qps": -1, "burst": 1}), "qps"),
        ] {
            assert!(read(given).unwrap_err().0.ends_with(field));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_the_limit_until_it_changes() {
        let limiter = RateLimiter::default();
        let mut service = limiter.layer(tower::service_fn(async |()| Ok::<_, ()>(())));
        let start = Instant::now();
        let mut ask = async |times: usize| {
            for _ in 0..times {
                service.ready().await.unwrap().call(()).await.unwrap();
            }
            start.elapsed().as_secs()
        };
        assert_eq!(ask(100).await, 0, "there is no limit");
        limiter.set(Some(RateLimit { per_second: 0.5, burst: 3.0 }));
        assert_eq!(ask(3).await, 0, "they are the burst");
        assert_eq!(ask(2).await, 4);
        limiter.set(Some(RateLimit { per_second: 0.5, burst: 3.0 }));
        assert_eq!(ask(1).await, 6, "the same limit gives no tokens anew");
        limiter.set(None);
        assert_eq!(ask(100).await, 6);
    }
}
