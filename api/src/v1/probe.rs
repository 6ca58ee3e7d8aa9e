use super::IntOrString;
use super::shape::shapes;

shapes! {
    /// A question asked again and again.
    pub struct Probe {
        /// A command in the guest.
        pub exec: Option<ExecAction>,
        /// Does the guest agent answer?
        pub guest_agent_ping: Option<GuestAgentPing>,
        /// An HTTP request.
        pub http_get: Option<HttpGetAction>,
        /// A TCP connection.
        pub tcp_socket: Option<TcpSocketAction>,
        /// Before the first one.
        pub initial_delay_seconds: Option<i32>,
        /// For an answer; 1 when absent.
        pub timeout_seconds: Option<i32>,
        /// Between two; 10 when absent.
        pub period_seconds: Option<i32>,
        /// Good answers in a row that count; 1 when absent.
        pub success_threshold: Option<i32>,
        /// Bad answers in a row that count; 3 when absent.
        pub failure_threshold: Option<i32>,
    }

    /// A command in the guest.
    pub struct ExecAction {
        /// The program and its arguments.
        pub command: Vec<String>,
    }

    /// Does the guest agent answer?
    pub struct GuestAgentPing {}

    /// An HTTP request.
    pub struct HttpGetAction {
        /// Its path.
        pub path: String,
        /// Its port.
        pub port: Option<IntOrString>,
        /// The address; the machine's own when empty.
        pub host: String,
        /// `HTTP` or `HTTPS`.
        pub scheme: String,
        /// More headers.
        pub http_headers: Vec<HttpHeader>,
    }

    /// A header.
    pub struct HttpHeader {
        /// Its name.
        pub name: String,
        /// Its value.
        pub value: String,
    }

    /// A TCP connection.
    pub struct TcpSocketAction {
        /// To this port.
        pub port: Option<IntOrString>,
        /// The address; the machine's own when empty.
        pub host: String,
    }
}
