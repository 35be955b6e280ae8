//! The cluster, namespace and user, found as kubectl does.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use crds::Stored;
use http::{HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, chain};
use crate::kind::{Kind, Name};
use crate::output::report;

/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Number of existing objects that an error names if the wanted one does not exist.
const NAMED_INSTEAD: usize = 5;
/// How long until a server counts as unreachable, as in kubectl.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The owner of fields that the plugin sets, in messages about conflicts of server-side apply.
pub(crate) const FIELD_MANAGER: &str = "kubectl-vit";

/// Flags for cluster, namespace and user, with kubectl's names.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Connection {
    /// Context of the kubeconfig, instead of the current one
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Namespace, instead of the context's
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Kubeconfig file, instead of $KUBECONFIG or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Cluster of the kubeconfig, instead of the context's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig, instead of the context's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// User to act as
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) impersonate: Option<HeaderValue>,
    /// Group to act as; may be given several times
    #[arg(
        long = "as-group",
        global = true,
        value_name = "GROUP",
        requires = "impersonate"
    )]
    pub(crate) impersonate_groups: Vec<HeaderValue>,
}

/// A cluster and a namespace of it.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    server: String,
    place: Place,
}

impl Cluster {
    /// Finds the cluster without contacting it.
    pub(crate) async fn connect(connection: &Connection) -> Result<Self, Error> {
        let mut config = config(connection).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let user = connection
            .impersonate
            .iter()
            .map(|user| ("impersonate-user", user));
        let groups = connection.impersonate_groups.iter();
        let groups = groups.map(|group| ("impersonate-group", group));
        let headers = user.chain(groups);
        let headers = headers.map(|(name, value)| (HeaderName::from_static(name), value.clone()));
        config.headers.extend(headers);
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = connection.namespace.as_ref().unwrap_or(&config.default_namespace);
        let kubeconfig = connection.kubeconfig.as_ref();
        let flags = [
            ("context", connection.context.clone()),
            ("cluster", connection.cluster.clone()),
            ("user", connection.user.clone()),
            ("kubeconfig", kubeconfig.map(|path| path.display().to_string())),
        ];
        let flags = flags
            .into_iter()
            .filter_map(|(flag, value)| Some(format!(" --{flag} {}", value?)));
        let place = Place {
            namespace: namespace.clone(),
            flags: flags.collect(),
        };
        let client = Client::try_from(config)
            .map_err(|error| Error::refused("use the credentials of the kubeconfig", &error))?;
        Ok(Self {
            client,
            server,
            place,
        })
    }

    /// A cluster that `client` answers for, for tests.
    #[cfg(test)]
    pub(crate) fn from_client(client: Client) -> Self {
        Self {
            client,
            server: "http://test".into(),
            place: crate::fixtures::place(""),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.place.namespace
    }

    /// The objects of a kind in the namespace.
    pub(crate) fn api<K: Kind>(&self) -> Api<Stored<K>> {
        Api::namespaced(self.client.clone(), self.namespace())
    }

    /// The pods of the namespace.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace())
    }

    /// Namespace and flags of commands proposed to the user.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The same cluster with another namespace.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Self {
        let mut other = self.clone();
        namespace.clone_into(&mut other.place.namespace);
        other
    }

    /// All objects, page by page.
    pub(crate) async fn list<K>(&self, api: Api<K>, params: ListParams, doing: &str) -> Result<Vec<K>, Error>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        let mut params = params.limit(PAGE);
        let mut items = vec![];
        loop {
            let page = api
                .list(&params)
                .await
                .map_err(|error| self.error(doing, error))?;
            items.extend(page.items);
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(items);
            }
        }
    }

    /// All jobs or studies of the namespace or of all namespaces; warns of objects that cannot be read.
    pub(crate) async fn list_readable<K: Kind>(
        &self,
        all_namespaces: bool,
        labels: Option<&str>,
    ) -> Result<Vec<K>, Error> {
        let api: Api<Stored<K>> = if all_namespaces {
            Api::all(self.client.clone())
        } else {
            Api::namespaced(self.client.clone(), self.namespace())
        };
        let params = ListParams {
            label_selector: labels.map(Into::into),
            ..ListParams::default()
        };
        let mut objects = vec![];
        for Stored(object) in self.list(api, params, &format!("list {}", K::NOUNS)).await? {
            match object {
                Ok(object) => objects.push(object),
                Err(unreadable) => report(&format!(
                    "warning: {}/{} cannot be read by this plugin: {unreadable}",
                    unreadable.object.namespace().unwrap_or_default(),
                    unreadable.object.name_any()
                )),
            }
        }
        Ok(objects)
    }

    /// Reports that no such objects exist.
    pub(crate) fn report_none(&self, what: &str, all_namespaces: bool) {
        let place = if all_namespaces {
            "any namespace".into()
        } else {
            format!("namespace {}", self.namespace())
        };
        report(&format!("No {what} found in {place}."));
    }

    /// A job or study by its name; if it does not exist, the error names others.
    pub(crate) async fn get<K: Kind>(&self, name: &Name<K>) -> Result<K, Error> {
        let object = self.api::<K>().get(name.as_str()).await;
        Ok(self.about("get", name, object).await?.0?)
    }

    /// Merges this into a job or study.
    pub(crate) async fn patch<K: Kind>(&self, name: &Name<K>, patch: &Value) -> Result<(), Error> {
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(patch);
        let patched = self.api::<K>().patch(name.as_str(), &params, &patch).await;
        self.about("change", name, patched).await.map(drop)
    }

    /// The answer to a call about one job or study. If it does not exist, the error names others.
    pub(crate) async fn about<K: Kind, T>(
        &self,
        verb: &str,
        name: &Name<K>,
        answer: Result<T, kube::Error>,
    ) -> Result<T, Error> {
        let error = match answer {
            Ok(value) => return Ok(value),
            Err(error) => self.error(&format!("{verb} {} {name}", K::NOUN), error),
        };
        if !matches!(error, Error::NotFound(_)) {
            return Err(error);
        }
        let params = ListParams::default().limit(200);
        let mut others: Vec<String> = match self.api::<K>().list_metadata(&params).await {
            Ok(list) => list.items.iter().map(kube::ResourceExt::name_any).collect(),
            Err(_) => vec![],
        };
        let more = others.len().saturating_sub(NAMED_INSTEAD);
        others.truncate(NAMED_INSTEAD);
        let (nouns, list) = (K::NOUNS, K::LIST);
        let others = match (others.is_empty(), more) {
            (true, _) => format!(", which has no {nouns}; kubectl vit {list} -A shows all"),
            (false, 0) => format!(", which has {}", others.join(", ")),
            (false, more) => format!(", which has {} and {more} more", others.join(", ")),
        };
        Err(Error::NoObject {
            noun: K::NOUN,
            name: name.to_string(),
            namespace: self.namespace().into(),
            others,
        })
    }

    /// What an error of a call means.
    pub(crate) fn error(&self, doing: &str, error: kube::Error) -> Error {
        let message = match error {
            // For an unknown resource, the server answers without details.
            kube::Error::Api(status) if status.code == 404 && status.details.is_none() => {
                return Error::NoResource {
                    server: self.server.clone(),
                };
            }
            kube::Error::Api(status) if status.code == 404 => return Error::NotFound(status.message),
            kube::Error::Api(status) if status.code == 401 => {
                format!("{} does not accept these credentials", self.server)
            }
            kube::Error::Api(status) => status.message,
            kube::Error::SerdeError(error) => return Error::Unreadable(error.into()),
            error @ (kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_)) => {
                return Error::Unreachable {
                    server: self.server.clone(),
                    cause: chain(&error),
                };
            }
            error => return Error::refused(doing, &error),
        };
        Error::Refused {
            doing: doing.into(),
            message,
        }
    }
}

async fn config(connection: &Connection) -> Result<Config, Error> {
    let options = KubeConfigOptions {
        context: connection.context.clone(),
        cluster: connection.cluster.clone(),
        user: connection.user.clone(),
    };
    let is_chosen = [&options.context, &options.cluster, &options.user]
        .into_iter()
        .any(Option::is_some);
    let kubeconfig = match &connection.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    match kubeconfig {
        Ok(kubeconfig) => Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?),
        // A pod has a ServiceAccount instead of a kubeconfig.
        Err(error) if connection.kubeconfig.is_none() && !is_chosen => {
            Config::incluster().map_err(|_| error.into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Namespace and flags of commands proposed to the user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) namespace: String,
    pub(crate) flags: String,
}

impl Place {
    /// A command of this plugin, such as `why digits`.
    pub(crate) fn vit(&self, command: &str) -> String {
        format!("kubectl vit {command} -n {}{}", self.namespace, self.flags)
    }

    /// A command of kubectl in the namespace.
    pub(crate) fn kubectl(&self, command: &str) -> String {
        format!("kubectl {command} -n {}{}", self.namespace, self.flags)
    }

    /// A command of kubectl for cluster-scoped objects.
    pub(crate) fn kubectl_cluster(&self, command: &str) -> String {
        format!("kubectl {command}{}", self.flags)
    }
}

#[cfg(test)]
mod tests {
    use crds::ViTTrainingJob;
    use serde_json::{Value, json};

    use crate::fixtures;
    use crate::kind::JobName;
    use crate::mock::{Answer, server};

    #[tokio::test]
    async fn jobs_of_a_later_operator_are_shown_if_their_values_are_known() {
        let status = json!({"phase": "Running", "attempt": 1, "later": 1});
        let mut known: Value = json!(fixtures::job(status));
        known["spec"]["later"] = 1.into();
        let mut unknown = known.clone();
        unknown["status"]["phase"] = "Later".into();
        let cluster = server(move |request| match request.path.rsplit_once('/') {
            Some((_, "known")) => Answer::json(&known),
            Some((_, "unknown")) => Answer::json(&unknown),
            _ => Answer::list(&[&known, &unknown]),
        });
        let [known, unknown] = ["known", "unknown"].map(|name| name.parse::<JobName>().expect("a name"));
        assert_eq!(cluster.get(&known).await.expect("a job").spec.workers.nodes, 2);
        let error = cluster.get(&unknown).await.expect_err("unreadable").to_string();
        assert!(
            error.starts_with("cannot read the API server's answer (status.phase: unknown variant `Later`"),
            "{error}"
        );
        let listed: Vec<ViTTrainingJob> = cluster.list_readable(false, None).await.expect("jobs");
        assert_eq!(listed.len(), 1);
    }

    #[tokio::test]
    async fn a_change_is_by_this_plugin() {
        let cluster = server(|request| {
            assert_eq!(request.query, "fieldManager=kubectl-vit");
            Answer::json(&fixtures::job(json!({})))
        });
        let name: JobName = "digits".parse().expect("a name");
        let patch = json!({"spec": {"suspend": true}});
        cluster.patch(&name, &patch).await.expect("is changed");
    }

    #[tokio::test]
    async fn a_socks_proxy_is_used() {
        let mut config = kube::Config::new("http://test".parse().expect("a URL"));
        config.proxy_url = "socks5://localhost:1080".parse().ok();
        kube::Client::try_from(config).expect("accepts the proxy");
    }

    #[test]
    fn proposed_commands_go_to_the_same_place() {
        let place = crate::fixtures::place(" --context gpu");
        assert_eq!(
            [place.vit("why digits"), place.kubectl_cluster("uncordon node1")],
            [
                "kubectl vit why digits -n research --context gpu",
                "kubectl uncordon node1 --context gpu"
            ]
        );
    }
}
