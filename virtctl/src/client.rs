//! Requests: to the server of a kubeconfig, or to the virt-handler of this host over its unix socket.

mod config;
mod destination;
mod error;
mod handler;
mod http;
mod proxy;
mod stream;

use std::error::Error;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, header};
use kube::Config;
use kube::client::Body;
use serde_json::Value;
use tokio::time::timeout;

use crate::cli::{Server, Timeout};
use destination::Destination;
pub(crate) use error::ClientError;
use error::{refused, unreachable_or_failed};
use handler::Absent;
pub(crate) use proxy::Proxy;
pub(crate) use stream::Connection;

/// No answer is larger.
const ANSWER_LIMIT: usize = 16 << 20;

/// What answers.
pub(crate) struct Client {
    endpoint: Endpoint,
    client: kube::Client,
    namespace: String,
    timeout: Timeout,
}

enum Endpoint {
    /// A virt-handler's socket.
    Handler,
    /// An API server.
    Server(Box<Config>),
}

/// The namespace of names without one. No credential plugin runs for it.
pub(crate) async fn namespace(server: &Server) -> Result<String, ClientError> {
    if let Some(namespace) = &server.namespace {
        return Ok(namespace.clone());
    }
    Ok(match Destination::of(server) {
        Destination::Server(files) => config::config(files.as_deref(), server).await?.default_namespace,
        Destination::Pod => config::in_pod(server).await?.default_namespace,
        Destination::Handler(_) => "default".to_owned(),
    })
}

impl Client {
    /// A client of the server that the command line and the environment select.
    pub(crate) async fn new(server: &Server) -> Result<Self, ClientError> {
        let config = match Destination::of(server) {
            Destination::Handler(directory) => {
                if let Some(flag) = server.credential() {
                    return Err(ClientError::NoUsers(flag));
                }
                let namespace = server.namespace.clone().unwrap_or_else(|| "default".to_owned());
                let client = handler::client(directory.join("handler.sock"));
                let timeout = server.request_timeout.flatten();
                return Ok(Self { endpoint: Endpoint::Handler, client, namespace, timeout });
            }
            Destination::Server(files) => config::config(files.as_deref(), server).await?,
            Destination::Pod => config::in_pod(server).await?,
        };
        let namespace = server.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = http::client(&config).map_err(|error| ClientError::Unusable(Box::new(error)))?;
        let endpoint = Endpoint::Server(Box::new(config));
        Ok(Self { endpoint, client, namespace, timeout: server.request_timeout.flatten() })
    }

    /// The same in another namespace, if one is given.
    pub(crate) fn within(mut self, namespace: Option<&str>) -> Self {
        self.namespace = namespace.map_or(self.namespace, str::to_owned);
        self
    }

    /// The namespace that is meant.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The path of a virtual machine instance.
    pub(crate) fn vmi(&self, name: &str) -> String {
        format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{name}", self.namespace)
    }

    /// The path of a virtual machine.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn vm(&self, name: &str) -> Result<String, ClientError> {
        self.kubevirt(&format!("virtualmachines/{name}"))
    }

    /// The path of a PersistentVolumeClaim.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn claim(&self, name: &str) -> Result<String, ClientError> {
        self.core(&format!("persistentvolumeclaims/{name}"))
    }

    /// The path of a DataVolume.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn data_volume(&self, name: &str) -> Result<String, ClientError> {
        self.server()?;
        Ok(format!("/apis/cdi.kubevirt.io/v1beta1/namespaces/{}/datavolumes/{name}", self.namespace))
    }

    /// The path of objects in the namespace, or of one of them: `core`, such as `secrets/keys`.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn core(&self, object: &str) -> Result<String, ClientError> {
        self.server()?;
        Ok(format!("/api/v1/namespaces/{}/{object}", self.namespace))
    }

    /// The path of objects of KubeVirt in the namespace, or of one of them.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn kubevirt(&self, object: &str) -> Result<String, ClientError> {
        self.server()?;
        Ok(format!("/apis/kubevirt.io/v1/namespaces/{}/{object}", self.namespace))
    }

    /// The path of a document of KubeVirt's API server.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn document(&self, name: &str) -> Result<String, ClientError> {
        self.server()?;
        Ok(format!("/apis/subresources.kubevirt.io/v1/{name}"))
    }

    /// The path of the server's version of KubeVirt.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn version(&self) -> Result<String, ClientError> {
        self.document("version").map_err(|_| ClientError::NoVersion)
    }

    /// The path of a part of it: `console`, `vnc`, `portforward/22/tcp`.
    pub(crate) fn subresource(&self, name: &str, subresource: &str) -> String {
        let base = match self.endpoint {
            Endpoint::Handler => "/v1",
            Endpoint::Server(_) => "/apis/subresources.kubevirt.io/v1",
        };
        format!("{base}/namespaces/{}/virtualmachineinstances/{name}/{subresource}", self.namespace)
    }

    /// The path of a part of a virtual machine: `start`, `expand-spec`, `portforward/22/tcp`.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn vm_subresource(&self, name: &str, subresource: &str) -> Result<String, ClientError> {
        let path = self.vm(name)?.replace("/apis/kubevirt.io/", "/apis/subresources.kubevirt.io/");
        Ok(format!("{path}/{subresource}"))
    }

    /// The path at which a virtual machine that is not stored is expanded.
    ///
    /// # Errors
    /// When it is a virt-handler that answers.
    pub(crate) fn expand(&self) -> Result<String, ClientError> {
        self.server()?;
        Ok(format!("/apis/subresources.kubevirt.io/v1/namespaces/{}/expand-vm-spec", self.namespace))
    }

    /// The way to an upload proxy.
    ///
    /// # Errors
    /// When there can be none at a URL, or it is a virt-handler that answers.
    pub(crate) fn proxy(&self, url: &str, insecure: bool) -> Result<Proxy, ClientError> {
        Proxy::new(self.server()?, url, insecure)
    }

    fn server(&self) -> Result<&Config, ClientError> {
        match &self.endpoint {
            Endpoint::Handler => Err(ClientError::NoVms),
            Endpoint::Server(config) => Ok(config),
        }
    }

    /// Calls a subresource of a virtual machine: `start`, `stop`.
    pub(crate) async fn ask(&self, name: &str, what: &str, options: &Value) -> Result<(), ClientError> {
        self.put(&self.vm_subresource(name, what)?, options).await.map(drop)
    }

    /// GETs a JSON document.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, ClientError> {
        let body = self.get_bytes(path, "application/json").await?;
        serde_json::from_slice(&body).map_err(ClientError::Json)
    }

    /// GETs anything, of the media type `accept`.
    pub(crate) async fn get_bytes(&self, path: &str, accept: &str) -> Result<Bytes, ClientError> {
        let request = Request::get(path).header(header::ACCEPT, accept).body(Body::empty());
        self.send(request.map_err(ClientError::Request)?).await
    }

    /// POSTs a JSON document.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Bytes, ClientError> {
        self.give(Request::post(path), body).await
    }

    /// PUTs a JSON document.
    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<Bytes, ClientError> {
        self.give(Request::put(path), body).await
    }

    /// Changes an object by a merge patch.
    pub(crate) async fn merge(&self, path: &str, patch: &Value) -> Result<Bytes, ClientError> {
        let request = Request::patch(path).header(header::CONTENT_TYPE, "application/merge-patch+json");
        let body = Body::from(patch.to_string().into_bytes());
        self.send(request.body(body).map_err(ClientError::Request)?).await
    }

    /// GETs a JSON document with options, which the body has.
    pub(crate) async fn get_with(&self, path: &str, options: &Value) -> Result<Value, ClientError> {
        let body = self.give(Request::get(path), options).await?;
        serde_json::from_slice(&body).map_err(ClientError::Json)
    }

    async fn give(&self, request: hyper::http::request::Builder, body: &Value) -> Result<Bytes, ClientError> {
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let body = Body::from(body.to_string().into_bytes());
        self.send(request.body(body).map_err(ClientError::Request)?).await
    }

    /// Sends a request and reads the whole answer, as long as that may take.
    async fn send(&self, request: Request<Body>) -> Result<Bytes, ClientError> {
        self.in_time(async {
            let response = self.begin(request).await?;
            let code = response.status();
            let body = whole(response).await?;
            if code.is_success() { Ok(body) } else { Err(refused(code, &body)) }
        })
        .await
    }

    async fn in_time<T>(
        &self,
        answered: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match self.timeout {
            None => answered.await,
            Some(length) => {
                timeout(length, answered).await.unwrap_or_else(|_| Err(ClientError::Timeout(length)))
            }
        }
    }

    /// Sends a request.
    async fn begin(&self, request: Request<Body>) -> Result<Response<Body>, ClientError> {
        self.client.send(request).await.map_err(|error| self.failed(error))
    }

    /// The error's message.
    fn failed(&self, error: kube::Error) -> ClientError {
        let source: Box<dyn Error + Send + Sync> = match error {
            kube::Error::Service(source) => source,
            other => Box::new(other),
        };
        match (source.downcast::<Absent>(), &self.endpoint) {
            (Ok(absent), _) => ClientError::Connect { socket: absent.socket, source: absent.source },
            (Err(source), Endpoint::Server(config)) => unreachable_or_failed(&config.cluster_url, source),
            (Err(source), Endpoint::Handler) => ClientError::Http(source),
        }
    }
}

/// All of an answer.
async fn whole<B>(response: Response<B>) -> Result<Bytes, ClientError>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await.map_err(ClientError::Body)?;
    Ok(body.to_bytes())
}
