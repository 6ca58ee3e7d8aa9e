use super::IntOrString;
use super::shape::shapes;

shapes! {
    /// A health check that is performed periodically: one of its handlers must be set.
    pub struct Probe {
        /// Executes a command in the guest by the guest agent; exit code 0 is success.
        pub exec: Option<ExecAction>,
        /// Pings the QEMU guest agent.
        pub guest_agent_ping: Option<GuestAgentPing>,
        /// Performs an HTTP GET request.
        pub http_get: Option<HttpGetAction>,
        /// Opens a TCP connection.
        pub tcp_socket: Option<TcpSocketAction>,
        /// Seconds after the start of the VMI before probes are initiated. Defaults to 0.
        pub initial_delay_seconds: Option<i32>,
        /// Seconds after which the probe times out. Defaults to 1; the minimum is 1.
        pub timeout_seconds: Option<i32>,
        /// Seconds between probes. Defaults to 10; the minimum is 1.
        pub period_seconds: Option<i32>,
        /// Minimum consecutive successes for the probe to be considered successful after it failed. Defaults to 1; it
        /// must be 1 for liveness.
        pub success_threshold: Option<i32>,
        /// Minimum consecutive failures for the probe to be considered failed after it succeeded. Defaults to 3; the
        /// minimum is 1.
        pub failure_threshold: Option<i32>,
    }

    /// Executes a command in the guest.
    pub struct ExecAction {
        /// Command line: the program and its arguments. It is not run in a shell.
        pub command: Vec<String>,
    }

    /// Pings the QEMU guest agent.
    pub struct GuestAgentPing {}

    /// Performs an HTTP GET request.
    pub struct HttpGetAction {
        /// Path of the request.
        pub path: String,
        /// Number or name of the port, from 1 to 65535.
        pub port: Option<IntOrString>,
        /// Host name to connect to. Defaults to the IP address of the VMI.
        pub host: String,
        /// Scheme of the connection: `HTTP` or `HTTPS`. Defaults to `HTTP`.
        pub scheme: String,
        /// Custom headers of the request. Repeated headers are allowed.
        pub http_headers: Vec<HttpHeader>,
    }

    /// A custom header of an HTTP probe.
    pub struct HttpHeader {
        /// Name of the header field.
        pub name: String,
        /// Value of the header field.
        pub value: String,
    }

    /// Opens a TCP connection.
    pub struct TcpSocketAction {
        /// Number or name of the port, from 1 to 65535.
        pub port: Option<IntOrString>,
        /// Host name to connect to. Defaults to the IP address of the VMI.
        pub host: String,
    }
}
