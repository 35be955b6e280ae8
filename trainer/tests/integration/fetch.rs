//! `vit-trainer fetch` from an S3 server, a web server and the Hub's API, with their faults.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::error_handling::HandleError;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, LINK, LOCATION, RANGE, RETRY_AFTER};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use futures::stream;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Runtime;
use tower_http::services::ServeDir;

use crate::common::{TRAINER, await_condition};

const TOKEN: &str = "hf_of_the_test";

/// A server's next faults, and the requests it has received.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Number of requests to answer with 429.
    pub(crate) refused: AtomicU32,
    /// Number of responses to break off in the middle.
    pub(crate) cut: AtomicU32,
    /// Milliseconds before a response.
    pub(crate) late: AtomicU32,
    /// Milliseconds between the sixteen parts of a response.
    slow: AtomicU32,
    /// Whether ranges are ignored, and whole files are returned.
    whole: AtomicBool,
    /// Requested paths with their ranges.
    asked: Mutex<Vec<String>>,
}

/// A server of files in a folder, in this process.
pub(crate) struct Server {
    pub(crate) files: tempfile::TempDir,
    pub(crate) faults: Arc<Faults>,
    pub(crate) address: String,
    /// Dropped with it.
    _runtime: Runtime,
}

fn takes(count: &AtomicU32) -> bool {
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

/// The faults between a server and its clients.
async fn fail(State(faults): State<Arc<Faults>>, mut request: Request, next: Next) -> Response {
    let range = request
        .headers()
        .get(RANGE)
        .map_or("", |range| range.to_str().expect("text"));
    let asked = format!("{} {} {range}", request.method(), request.uri().path());
    faults
        .asked
        .lock()
        .expect("no panic")
        .push(asked.trim_end().to_owned());
    if takes(&faults.refused) {
        return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "0")]).into_response();
    }
    if faults.whole.load(Ordering::SeqCst) {
        request.headers_mut().remove(RANGE);
    }
    tokio::time::sleep(Duration::from_millis(faults.late.load(Ordering::SeqCst).into())).await;
    let is_file = request.method() == "GET"
        && request.uri().query().is_none()
        && !request.uri().path().starts_with("/api");
    let (mut parts, body) = next.run(request).await.into_parts();
    if !is_file || !parts.status.is_success() {
        return Response::from_parts(parts, body);
    }
    let bytes = to_bytes(body, usize::MAX).await.expect("a file");
    parts.headers.insert(CONTENT_LENGTH, bytes.len().into());
    let cut = takes(&faults.cut);
    let pause = Duration::from_millis(faults.slow.load(Ordering::SeqCst).into());
    let size = bytes.len().div_ceil(16).max(1);
    let pieces: Vec<_> = bytes.chunks(size).map(|piece| bytes.slice_ref(piece)).collect();
    let pieces = stream::unfold(pieces.into_iter().enumerate(), move |mut pieces| async move {
        let (number, piece) = pieces.next()?;
        tokio::time::sleep(pause).await;
        let broken = cut && number == 8;
        let piece = if broken {
            Err(std::io::Error::other("the connection breaks"))
        } else {
            Ok(piece)
        };
        Some((piece, pieces))
    });
    Response::from_parts(parts, Body::from_stream(pieces))
}

impl Server {
    fn start(router: impl FnOnce(&Path) -> Router) -> Self {
        let files = tempfile::tempdir().expect("a folder");
        let faults = Arc::new(Faults::default());
        let router = router(files.path()).layer(from_fn_with_state(Arc::clone(&faults), fail));
        let runtime = Runtime::new().expect("threads");
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        runtime.spawn(async { axum::serve(listener, router).await });
        Self {
            files,
            faults,
            address,
            _runtime: runtime,
        }
    }

    /// A bucket `images`, for clients with the key.
    pub(crate) fn s3() -> Self {
        Self::start(|files| {
            fs_err::create_dir(files.join("images")).expect("a bucket");
            let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(files).expect("a folder"));
            builder.set_auth(SimpleAuth::from_single("key", "secret"));
            let failed = |_| async { StatusCode::INTERNAL_SERVER_ERROR };
            Router::new().fallback_service(HandleError::new(builder.build(), failed))
        })
    }

    fn web() -> Self {
        Self::start(|files| Router::new().fallback_service(ServeDir::new(files)))
    }

    /// A data set and a model of the Hub, `owner/name`, whose file list has two pages.
    fn hub() -> Self {
        Self::start(|files| {
            let folder = files.to_owned();
            let tree = move |request: Request| {
                let folder = folder.clone();
                async move { page(&folder, &request) }
            };
            let repositories = [("datasets", "/datasets"), ("models", "")];
            let routes = repositories
                .into_iter()
                .fold(Router::new(), |routes, (kind, prefix)| {
                    let tree = tree.clone();
                    routes
                        .route(&format!("/api/{kind}/owner/name/revision/main"), get(revision))
                        .route(&format!("/api/{kind}/owner/name/tree/c0ffee/"), get(tree))
                        .route(
                            &format!("{prefix}/owner/name/resolve/c0ffee/{{*path}}"),
                            any(redirect),
                        )
                });
            routes.nest_service("/cdn", ServeDir::new(files))
        })
    }

    fn write(&self, files: &BTreeMap<String, Vec<u8>>, below: &str) {
        for (name, bytes) in files {
            let path = self.files.path().join(below).join(name);
            fs_err::create_dir_all(path.parent().expect("a folder")).expect("creates");
            fs_err::write(path, bytes).expect("writes");
        }
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.faults.asked.lock().expect("no panic"))
    }

    fn command(&self, locations: &[&str], folder: &Path) -> Command {
        let mut command = Command::new(TRAINER);
        command
            .arg("fetch")
            .args(
                locations
                    .iter()
                    .map(|location| location.replace("SERVER", &self.address)),
            )
            .arg("--to")
            .arg(folder)
            .env_clear()
            .envs([
                (
                    "LD_LIBRARY_PATH",
                    std::env::var("LD_LIBRARY_PATH").unwrap_or_default().as_str(),
                ),
                ("AWS_ENDPOINT_URL", &self.address),
                ("AWS_ALLOW_HTTP", "true"),
                ("AWS_REGION", "us-east-1"),
                ("AWS_ACCESS_KEY_ID", "key"),
                ("AWS_SECRET_ACCESS_KEY", "secret"),
                ("HF_ENDPOINT", &self.address),
                ("HF_TOKEN", TOKEN),
            ]);
        command
    }

    /// Its exit code and output.
    fn fetch(&self, locations: &[&str], folder: &Path) -> (Option<i32>, String) {
        ended(self.command(locations, folder).output().expect("starts"))
    }
}

async fn revision(request: Request) -> Response {
    let known = request
        .headers()
        .get(AUTHORIZATION)
        .is_some_and(|value| *value == format!("Bearer {TOKEN}"));
    if known {
        axum::Json(json!({"sha": "c0ffee"})).into_response()
    } else {
        StatusCode::UNAUTHORIZED.into_response()
    }
}

/// The first file, and the link to the list of the others; or that list.
fn page(folder: &Path, request: &Request) -> Response {
    let files = tree(folder);
    let entry = |(name, bytes): (&String, &Vec<u8>)| {
        let mut entry = json!({"type": "file", "path": name, "oid": "0a1b", "size": bytes.len()});
        // Large files have the checksum of their content.
        if bytes.len() > 1000 {
            let sum = if name == "wrong.bin" {
                Sha256::digest(b"other")
            } else {
                Sha256::digest(bytes)
            };
            let digits: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
            entry["lfs"] = json!({"oid": digits, "size": bytes.len()});
        }
        entry
    };
    let directory = json!({"type": "directory", "path": "data", "oid": "0"});
    if request
        .uri()
        .query()
        .is_some_and(|query| query.contains("cursor"))
    {
        let entries: Vec<_> = files.iter().skip(1).map(entry).chain([directory]).collect();
        return axum::Json(entries).into_response();
    }
    let host = request.headers()["host"].to_str().expect("text");
    let next = format!(
        "<http://{host}{}?recursive=true&cursor=1>; rel=\"next\"",
        request.uri().path()
    );
    let entries: Vec<_> = files.iter().take(1).map(entry).collect();
    ([(LINK, next)], axum::Json(entries)).into_response()
}

/// Redirects to a file's location, as the Hub does.
async fn redirect(request: Request) -> Response {
    let path = request
        .uri()
        .path()
        .trim_start_matches("/datasets")
        .trim_start_matches("/owner/name/resolve/c0ffee");
    (StatusCode::FOUND, [(LOCATION, format!("/cdn{path}"))]).into_response()
}

fn ended(output: Output) -> (Option<i32>, String) {
    let printed = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&printed).into_owned(),
    )
}

/// Files in a folder and below, by name, without the fetcher's hidden ones.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in fs_err::read_dir(inner).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path
                .strip_prefix(folder)
                .expect("below")
                .to_str()
                .expect("UTF-8")
                .to_owned();
            if name.split('/').any(|part| part.starts_with('.')) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(name, fs_err::read(path).expect("reads"));
            }
        }
    }
    found
}

/// A name with many characters to escape in a URL.
const ODD: &str = "sub/caf\u{e9} 50%~[1].tar";

fn files() -> BTreeMap<String, Vec<u8>> {
    let content = |number: usize, size: usize| {
        (0..size)
            .map(|place| (place * (number + 3) % 251) as u8)
            .collect()
    };
    let sizes = [
        ("train-000.tar", 400_000),
        ("train-001.tar", 70_000),
        (ODD, 5),
        ("empty.txt", 0),
    ];
    sizes
        .into_iter()
        .enumerate()
        .map(|(number, (name, size))| (name.to_owned(), content(number, size)))
        .collect()
}

/// Each kind of store with the same files, and the locations of them all.
fn stores() -> [(Server, Vec<&'static str>); 4] {
    let [s3, web, hub, models] = [Server::s3(), Server::web(), Server::hub(), Server::hub()];
    s3.write(&files(), "images/set");
    web.write(&files(), "set");
    hub.write(&files(), "");
    models.write(&files(), "");
    // A web server has no listing.
    let of_web = vec![
        "SERVER/set/train-{000..001}.tar",
        "SERVER/set/empty.txt",
        "SERVER/set/sub/caf%C3%A9%2050%25~%5B1%5D.tar",
    ];
    [
        (s3, vec!["s3://images/set"]),
        (web, of_web),
        (hub, vec!["hf://datasets/owner/name"]),
        (models, vec!["hf://owner/name"]),
    ]
}

#[test]
fn files_come_whole_and_once_whatever_a_server_does() {
    for (server, locations) in stores() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut expected = files();
        if locations.len() > 1 {
            // Its folder is in the URL.
            let odd = expected.remove(ODD).expect("is there");
            expected.insert(ODD.trim_start_matches("sub/").to_owned(), odd);
        }
        server.faults.refused.store(3, Ordering::SeqCst);
        server.faults.cut.store(2, Ordering::SeqCst);
        server.faults.late.store(30, Ordering::SeqCst);
        let (code, printed) = server.fetch(&locations, folder.path());
        assert_eq!(code, Some(0), "{locations:?}: {printed}");
        assert!(
            tree(folder.path()) == expected,
            "{locations:?}: {:?}",
            tree(folder.path()).keys()
        );
        let count = expected.len();
        assert!(
            printed.contains(&format!("{count} files, {count} of them fetched")),
            "{printed}"
        );
        assert_eq!(server.faults.cut.load(Ordering::SeqCst), 0, "answers broke off");

        server.asked();
        let (code, printed) = server.fetch(&locations, folder.path());
        assert_eq!(code, Some(0), "{printed}");
        assert!(
            printed.contains(&format!("{count} files, 0 of them fetched")),
            "{printed}"
        );
        let read: Vec<String> = server
            .asked()
            .into_iter()
            .filter(|asked| asked.starts_with("GET ") && asked.contains("train-"))
            .collect();
        assert_eq!(read, [] as [&str; 0], "{locations:?}");
    }
}

#[test]
fn what_was_stopped_goes_on_where_it_was() {
    /// This much of a partial file's end is fetched again.
    const DISTRUSTED: u64 = 8 << 20;
    let large: Vec<u8> = (0..10_000_000_u32)
        .flat_map(|place| [(place % 251) as u8])
        .collect();
    let large = BTreeMap::from([("train-000.tar".to_owned(), large)]);
    for (server, locations) in stores() {
        server.write(&large, if locations.len() > 1 { "set" } else { "" });
        server.write(&large, "images/set");
        let folder = tempfile::tempdir().expect("a folder");
        server.faults.slow.store(100, Ordering::SeqCst);
        let part = || {
            let entries = fs_err::read_dir(folder.path().join(".fetch"))
                .into_iter()
                .flatten();
            let entries = entries.map(|entry| entry.expect("an entry"));
            let parts =
                entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "part"));
            parts
                .map(|entry| entry.metadata().map_or(0, |about| about.len()))
                .max()
                .unwrap_or(0)
        };
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            server.asked();
            let mut child = server
                .command(&locations, folder.path())
                .stderr(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .expect("starts");
            await_condition("most of the large file", || {
                part() > DISTRUSTED && !server.asked().is_empty()
            });
            kill(Pid::from_raw(child.id().cast_signed()), signal).expect("is told");
            let code = child.wait().expect("ends").code();
            assert_eq!(code, (signal == Signal::SIGTERM).then_some(143));
            assert!(!folder.path().join("train-000.tar").exists());
        }
        // When killed, it leaves its lock, which nobody holds.
        fs_err::remove_file(folder.path().join(".fetch/lock")).expect("removes");
        server.faults.slow.store(0, Ordering::SeqCst);
        let present = part();
        server.faults.whole.store(locations.len() > 1, Ordering::SeqCst);
        server.asked();
        let (code, printed) = server.fetch(&locations, folder.path());
        assert_eq!(code, Some(0), "{printed}");
        let asked = server.asked();
        let rest = format!("bytes={}-", present - DISTRUSTED);
        assert!(
            asked
                .iter()
                .any(|asked| asked.contains("train-000") && asked.ends_with(&rest)),
            "{present}: {asked:?}"
        );
        assert!(
            tree(folder.path())["train-000.tar"] == large["train-000.tar"],
            "{locations:?}"
        );
    }
}

#[test]
fn two_that_fetch_into_one_folder_share_the_work() {
    let server = Server::s3();
    server.write(&files(), "images");
    server.faults.slow.store(20, Ordering::SeqCst);
    let folder = tempfile::tempdir().expect("a folder");
    let both = [0, 1].map(|_| {
        let mut command = server.command(&["s3://images/train-*.tar"], folder.path());
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts")
    });
    let ends = both.map(|child| ended(child.wait_with_output().expect("ends")));
    assert!(ends.iter().all(|(code, _)| *code == Some(0)), "{ends:?}");
    let read = server
        .asked()
        .iter()
        .filter(|asked| asked.starts_with("GET ") && asked.contains(".tar"))
        .count();
    assert_eq!(read, 2, "each file once");
    let names: Vec<String> = tree(folder.path()).into_keys().collect();
    assert_eq!(names, ["train-000.tar", "train-001.tar"]);
}

#[test]
fn what_cannot_be_fetched_is_told_with_what_can_be_done() {
    let (s3, web, hub) = (Server::s3(), Server::web(), Server::hub());
    s3.write(&files(), "images");
    let folder = tempfile::tempdir().expect("a folder");
    let told = |server: &Server, location: &str, code: i32, expected: &str| {
        let (found, printed) = server.fetch(&[location], folder.path());
        assert_eq!(found, Some(code), "{location}: {printed}");
        let expected = expected.replace("SERVER", &server.address);
        assert!(printed.contains(&expected), "{location}: {printed}");
    };
    told(
        &s3,
        "s3://images/none/",
        2,
        "none of s3://images/none/ does not exist or has no files",
    );
    told(&s3, "s3://other/a.tar", 2, "does not exist or has no files");
    told(
        &web,
        "SERVER/a-{0..1}.tar",
        2,
        "a-0.tar of SERVER/a-{0..1}.tar does not exist or has no files",
    );
    told(
        &hub,
        "hf://datasets/owner/other",
        2,
        "owner/other of the Hub does not exist or has no files",
    );
    let mut stranger = hub.command(&["hf://datasets/owner/name"], folder.path());
    let (code, printed) = ended(stranger.env_remove("HF_TOKEN").output().expect("starts"));
    assert_eq!(code, Some(2), "{printed}");
    assert!(
        printed.contains(
            "access to owner/name of the Hub was denied (401 Unauthorized): give credentials as HF_TOKEN"
        ),
        "{printed}"
    );
    let mut stranger = s3.command(&["s3://images"], folder.path());
    let (code, printed) = ended(
        stranger
            .env("AWS_SECRET_ACCESS_KEY", "wrong")
            .output()
            .expect("starts"),
    );
    assert_eq!(code, Some(2), "{printed}");
    assert!(
        printed.contains("give credentials as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        "{printed}"
    );
    for (server, location) in [(&s3, "s3://images"), (&hub, "hf://datasets/owner/name")] {
        server.faults.refused.store(u32::MAX, Ordering::SeqCst);
        let mut command = server.command(&[location], folder.path());
        let (code, printed) = ended(command.args(["--retry-seconds", "1"]).output().expect("starts"));
        assert_eq!(code, Some(79), "{location}: {printed}");
        assert!(printed.contains("429"), "{location}: {printed}");
        server.faults.refused.store(0, Ordering::SeqCst);
    }
    // It ignores ranges, and breaks off each time.
    web.write(&files(), "");
    web.faults.whole.store(true, Ordering::SeqCst);
    web.faults.cut.store(u32::MAX, Ordering::SeqCst);
    let address = format!("{}/train-000.tar", web.address);
    let mut command = web.command(&[&address], folder.path());
    let (code, printed) = ended(command.args(["--retry-seconds", "2"]).output().expect("starts"));
    assert_eq!(code, Some(79), "{printed}");
    web.faults.cut.store(0, Ordering::SeqCst);
    // The store's checksum is wrong.
    hub.write(&BTreeMap::from([("wrong.bin".to_owned(), vec![1; 2000])]), "");
    told(
        &hub,
        "hf://datasets/owner/name/wrong.bin",
        79,
        "the received file has SHA-256 ",
    );
    let mut unsigned = s3.command(&["s3://images"], folder.path());
    unsigned
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY");
    // A credentials service that does not exist, as outside a cloud.
    unsigned.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    let (code, printed) = ended(unsigned.output().expect("starts"));
    assert_eq!(code, Some(2), "{printed}");
    assert!(
        printed.contains("set AWS_SKIP_SIGNATURE to true for a public bucket"),
        "{printed}"
    );
    let huge = fs_err::File::create(web.files.path().join("huge.tar")).expect("creates");
    huge.set_len(1 << 43).expect("has no blocks");
    told(
        &web,
        "SERVER/huge.tar",
        79,
        "bytes free, but 8796093022208 must be fetched",
    );
    assert_eq!(tree(folder.path()).len(), 0, "nothing is left");
}

#[test]
fn a_file_that_is_another_one_is_never_mixed_with_what_is_there() {
    let server = Server::s3();
    server.write(&files(), "images");
    let folder = tempfile::tempdir().expect("a folder");
    let location = "s3://images/train-*.tar";
    let own = folder.path().join("train-000.tar");
    fs_err::write(&own, "of somebody else").expect("writes");
    let (code, printed) = server.fetch(&[location], folder.path());
    assert_eq!(code, Some(2), "{printed}");
    assert!(
        printed.contains(
            "train-000.tar has 16 bytes, but the file to fetch has 400000: it was not fetched from there"
        ),
        "{printed}"
    );
    assert_eq!(fs_err::read(&own).expect("reads"), b"of somebody else");
    fs_err::remove_file(&own).expect("removes");
    // Its content is unknown, though its size is right.
    fs_err::write(&own, vec![0; 400_000]).expect("writes");
    assert_eq!(server.fetch(&[location], folder.path()).0, Some(2));
    fs_err::remove_file(&own).expect("removes");
    assert_eq!(server.fetch(&[location], folder.path()).0, Some(0));
    // Changed files are kept.
    let second = folder.path().join("train-001.tar");
    let kept = fs_err::read(&second).expect("reads");
    fs_err::write(&second, "of somebody else").expect("writes");
    assert_eq!(server.fetch(&[location], folder.path()).0, Some(2));
    fs_err::write(&second, kept).expect("writes");
    // Other files may be added.
    let (code, printed) = server.fetch(&["s3://images/empty.txt"], folder.path());
    assert_eq!(code, Some(0), "{printed}");

    // Of the same size, so that only its tag differs.
    let other = vec![7; 400_000];
    server.write(
        &BTreeMap::from([("train-000.tar".to_owned(), other.clone())]),
        "images",
    );
    let (code, printed) = server.fetch(&[location], folder.path());
    assert!(printed.contains("2 files, 1 of them fetched"), "{printed}");
    assert_eq!(
        (code, fs_err::read(&own).expect("reads") == other),
        (Some(0), true)
    );

    fs_err::remove_file(server.files.path().join("images/train-001.tar")).expect("removes");
    let (code, printed) = server.fetch(&[location], folder.path());
    assert_eq!(code, Some(2), "{printed}");
    assert!(
        printed.contains("train-001.tar was fetched, but does not exist at its source any more"),
        "{printed}"
    );
    let (_, printed) = server.fetch(
        &["s3://images/train-*.tar", "s3://images/train-000.tar"],
        folder.path(),
    );
    assert!(
        printed.contains("train-000.tar is in several of the fetched locations"),
        "{printed}"
    );
}
