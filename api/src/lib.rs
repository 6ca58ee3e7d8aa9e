//! KubeVirt's API objects, as they are served and as they are meant.
