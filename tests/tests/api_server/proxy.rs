//! A proxy between the operator and API servers, whose connections can be silenced.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    upstream: watch::Sender<SocketAddr>,
}

impl Proxy {
    /// Forwards connections to a server.
    pub(crate) async fn before(upstream: SocketAddr, address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (upstream, seen) = watch::channel(upstream);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(forward(connection, seen.clone()));
            }
        });
        Ok(Self { address, upstream })
    }

    /// From now on all present connections are silent, without an end, and new ones are forwarded to this
    /// server: what clients see after the failover of a load balancer.
    pub(crate) fn fail_over(&self, upstream: SocketAddr) {
        self.upstream.send_replace(upstream);
    }
}

async fn forward(mut connection: TcpStream, mut upstream: watch::Receiver<SocketAddr>) {
    let address = *upstream.borrow_and_update();
    let Ok(mut server) = TcpStream::connect(address).await else {
        return;
    };
    tokio::select! {
        _ = copy_bidirectional(&mut connection, &mut server) => {}
        Ok(()) = upstream.changed() => std::future::pending().await,
    }
}
