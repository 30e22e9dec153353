//! A connection that reads a server's figures, and puts no load on it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::connection::{Connection, RunError};
use crate::tls::{Dialler, TargetTls};

/// A connection to a server that is looked at.
#[derive(Debug)]
pub struct Observer(Connection);

impl Observer {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or refuses.
    pub fn connect(
        address: SocketAddr,
        tls: Option<&TargetTls>,
        password: Option<&str>,
    ) -> Result<Self, RunError> {
        Dialler::new(address, tls, password)?.connect().map(Self)
    }

    /// The fields of `INFO`, by their names.
    ///
    /// # Errors
    ///
    /// The connection broke, or the server refuses.
    pub fn figures(&mut self) -> Result<BTreeMap<String, String>, RunError> {
        let text = self.0.info()?;
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }
}
