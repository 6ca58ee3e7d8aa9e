//! The containers of a Pod, as tables.

use super::core::Definition;

pub(crate) const DEFINITIONS: &[Definition] = &[
    (
        "Container",
        "A single application container that runs within a pod.",
        &[
            (
                "name",
                "string",
                "Name of the container: a DNS label that is unique among the containers of the pod. Cannot be updated.",
            ),
            ("image", "string", "Name of the container image."),
            (
                "imagePullPolicy",
                "string",
                "When the image is pulled: Always, Never or IfNotPresent. Defaults to Always if the tag is latest or absent, else to IfNotPresent. Cannot be updated.",
            ),
            (
                "command",
                "[]string",
                "Entrypoint array, not executed within a shell. Defaults to the ENTRYPOINT of the image. Cannot be updated.",
            ),
            (
                "args",
                "[]string",
                "Arguments to the entrypoint. Defaults to the CMD of the image. Cannot be updated.",
            ),
            ("workingDir", "string", "Working directory of the container. Cannot be updated."),
            ("env", "[name]EnvVar", "Environment variables to set in the container. Cannot be updated."),
            (
                "envFrom",
                "[]any",
                "ConfigMaps and Secrets whose keys populate environment variables. Cannot be updated.",
            ),
            (
                "ports",
                "[containerPort,protocol]ContainerPort",
                "Ports to expose from the container. Primarily informational. Cannot be updated.",
            ),
            (
                "resources",
                "ResourceRequirements",
                "Compute resources that the container requires. Cannot be updated.",
            ),
            ("resizePolicy", "[]any", "Policies by which the resources of the container are resized."),
            (
                "restartPolicy",
                "string",
                "Restart behavior of an init container. The only value is Always, which makes it a sidecar that keeps running.",
            ),
            (
                "restartPolicyRules",
                "[]any",
                "Rules that decide by exit code whether the container is restarted.",
            ),
            (
                "securityContext",
                "SecurityContext",
                "Security options of the container. They override those of the pod.",
            ),
            (
                "volumeMounts",
                "[mountPath]VolumeMount",
                "Volumes of the pod to mount into the container's filesystem. Cannot be updated.",
            ),
            ("volumeDevices", "[devicePath]VolumeDevice", "Block devices to be used by the container."),
            (
                "livenessProbe",
                "any",
                "Periodic probe of liveness: the container is restarted if it fails. Cannot be updated.",
            ),
            (
                "readinessProbe",
                "any",
                "Periodic probe of readiness: the pod is not ready while it fails. Cannot be updated.",
            ),
            (
                "startupProbe",
                "any",
                "Probe of successful start: no other probe is executed until it succeeds. Cannot be updated.",
            ),
            (
                "lifecycle",
                "any",
                "Actions that are taken in response to container lifecycle events. Cannot be updated.",
            ),
            (
                "terminationMessagePath",
                "string",
                "Path of the file to which the container's termination message is written. Defaults to /dev/termination-log. Cannot be updated.",
            ),
            (
                "terminationMessagePolicy",
                "string",
                "How the termination message is populated: File or FallbackToLogsOnError. Defaults to File. Cannot be updated.",
            ),
            ("stdin", "boolean", "Whether a buffer for stdin is allocated. Defaults to false."),
            (
                "stdinOnce",
                "boolean",
                "Whether stdin is closed after it has been opened by a single attach. Defaults to false.",
            ),
            ("tty", "boolean", "Whether a TTY is allocated. Requires stdin. Defaults to false."),
        ],
    ),
    (
        "EnvVar",
        "An environment variable of a container.",
        &[
            ("name", "string", "Name of the environment variable."),
            (
                "value",
                "string",
                "Value of the variable, in which $(VAR_NAME) is expanded from variables defined before it.",
            ),
            (
                "valueFrom",
                "any",
                "Source of the value: fieldRef, resourceFieldRef, configMapKeyRef or secretKeyRef. Cannot be used if value is not empty.",
            ),
        ],
    ),
    (
        "ContainerPort",
        "A network port of a single container.",
        &[
            ("name", "string", "Name of the port, unique within the pod, by which services refer to it."),
            ("containerPort", "integer", "Number of the port to expose on the pod's IP address."),
            ("hostPort", "integer", "Number of the port to expose on the host."),
            ("hostIP", "string", "Host IP address to bind the external port to."),
            ("protocol", "string", "Protocol of the port: UDP, TCP or SCTP. Defaults to TCP."),
        ],
    ),
    (
        "ResourceRequirements",
        "Compute resource requirements.",
        &[
            ("limits", "{}any", "Maximum amounts of compute resources allowed."),
            (
                "requests",
                "{}any",
                "Minimum amounts of compute resources required. Default to the limits where those are specified.",
            ),
            ("claims", "[name]any", "Names of the pod's resource claims that the container uses."),
        ],
    ),
    (
        "SecurityContext",
        "Security configuration that is applied to a container.",
        &[
            ("privileged", "boolean", "Whether the container runs in privileged mode. Defaults to false."),
            (
                "capabilities",
                "Capabilities",
                "Capabilities to add and to drop. Defaults to those that the container runtime grants.",
            ),
            (
                "allowPrivilegeEscalation",
                "boolean",
                "Whether a process can gain more privileges than its parent.",
            ),
            ("readOnlyRootFilesystem", "boolean", "Whether the container has a read-only root filesystem."),
            ("runAsUser", "integer", "UID to run the entrypoint of the container process."),
            ("runAsGroup", "integer", "GID to run the entrypoint of the container process."),
            ("runAsNonRoot", "boolean", "Whether the container must run as a non-root user."),
            ("procMount", "string", "Type of proc mount: Default or Unmasked."),
            ("seLinuxOptions", "any", "SELinux context to be applied to the container."),
            ("seccompProfile", "any", "Seccomp options of the container."),
            ("appArmorProfile", "any", "AppArmor options of the container."),
            ("windowsOptions", "any", "Windows specific settings. Not used by this server."),
        ],
    ),
    (
        "Capabilities",
        "POSIX capabilities that are added to and removed from running containers.",
        &[("add", "[]string", "Added capabilities."), ("drop", "[]string", "Removed capabilities.")],
    ),
    (
        "VolumeMount",
        "Mounting of a volume within a container.",
        &[
            ("name", "string", "Name of the volume."),
            (
                "mountPath",
                "string",
                "Path within the container at which the volume is mounted. Must not contain ':'.",
            ),
            ("subPath", "string", "Path within the volume from which the container's volume is mounted."),
            ("subPathExpr", "string", "Expanded path within the volume. Mutually exclusive with subPath."),
            ("readOnly", "boolean", "Whether the volume is mounted read-only. Defaults to false."),
            (
                "recursiveReadOnly",
                "string",
                "Whether read-only mounts are handled recursively: Disabled, IfPossible or Enabled.",
            ),
            (
                "mountPropagation",
                "string",
                "How mounts are propagated between the host and the container: None, HostToContainer or Bidirectional.",
            ),
        ],
    ),
    (
        "VolumeDevice",
        "Mapping of a raw block device within a container.",
        &[
            ("name", "string", "Name of a persistentVolumeClaim volume in the pod."),
            ("devicePath", "string", "Path inside of the container that the device is mapped to."),
        ],
    ),
    (
        "ContainerStatus",
        "Details of the current status of a container.",
        &[
            ("name", "string", "Name of the container."),
            ("state", "ContainerState", "Current condition of the container."),
            ("lastState", "ContainerState", "Last termination state of the container."),
            ("ready", "boolean", "Whether the container is passing its readiness check."),
            (
                "started",
                "boolean",
                "Whether the container has finished its postStart hook and startup probe.",
            ),
            ("restartCount", "integer", "Number of times that the container has been restarted."),
            ("image", "string", "Name of the image that the container is running."),
            ("imageID", "string", "Image ID of the container's image."),
            ("containerID", "string", "ID of the container in the format type://container_id."),
            ("allocatedResources", "{}any", "Compute resources that the node allocated to the container."),
            ("allocatedResourcesStatus", "[name]any", "Status of the allocated resources."),
            ("resources", "ResourceRequirements", "Requests and limits of the running container."),
            ("volumeMounts", "[mountPath]any", "Status of the volume mounts."),
            ("user", "any", "User identity that was attached to the first process of the container."),
            ("stopSignal", "string", "Effective stop signal of the container."),
        ],
    ),
    (
        "ContainerState",
        "Possible states of a container. One member is set; the default is waiting.",
        &[
            ("waiting", "ContainerStateWaiting", "Details about a waiting container."),
            ("running", "ContainerStateRunning", "Details about a running container."),
            ("terminated", "ContainerStateTerminated", "Details about a terminated container."),
        ],
    ),
    (
        "ContainerStateWaiting",
        "Waiting state of a container.",
        &[
            ("reason", "string", "Brief reason why the container is not yet running."),
            ("message", "string", "Message regarding why the container is not yet running."),
        ],
    ),
    (
        "ContainerStateRunning",
        "Running state of a container.",
        &[("startedAt", "time", "Time at which the container was last started.")],
    ),
    (
        "ContainerStateTerminated",
        "Terminated state of a container.",
        &[
            ("exitCode", "integer", "Exit status from the last termination of the container."),
            ("signal", "integer", "Signal from the last termination of the container."),
            ("reason", "string", "Brief reason from the last termination of the container."),
            ("message", "string", "Message regarding the last termination of the container."),
            ("startedAt", "time", "Time at which the previous execution of the container started."),
            ("finishedAt", "time", "Time at which the container last terminated."),
            ("containerID", "string", "ID of the container in the format type://container_id."),
        ],
    ),
];
