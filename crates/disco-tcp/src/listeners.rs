//! The sockets at which a rank listens: one for each family of addresses, so that none depends on `net.ipv6.bindv6only`, and a
//! machine may lack a family.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use disco_core::{Error, Result};

/// Listeners at all interfaces, on any free ports.
#[derive(Debug)]
pub(crate) struct Listeners(Vec<(TcpListener, SocketAddr)>);

impl Listeners {
    /// # Errors
    /// The machine has no family of addresses, or the process no descriptor left.
    pub(crate) fn bind() -> Result<Self> {
        let bind = |ip: IpAddr| -> io::Result<_> {
            let listener = TcpListener::bind((ip, 0))?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let refused = |error| Error::system("connect: no socket can listen", error);
        match (bind(Ipv4Addr::UNSPECIFIED.into()), bind(Ipv6Addr::UNSPECIFIED.into())) {
            (Err(error), Err(_)) => Err(refused(error)),
            (four, six) => Ok(Self([four, six].into_iter().flatten().collect())),
        }
    }

    /// The port at an address of this machine; none without a listener of its family.
    pub(crate) fn port(&self, ip: IpAddr) -> Option<u16> {
        self.0.iter().map(|(_, own)| own).find(|own| own.is_ipv4() == ip.is_ipv4()).map(SocketAddr::port)
    }

    /// A new connection, if there is one.
    pub(crate) fn accept(&self) -> Option<TcpStream> {
        // Other errors than that of no connection are those of a connection that has failed, or pass.
        self.0.iter().find_map(|(listener, _)| listener.accept().ok()).map(|(stream, _)| stream)
    }
}
