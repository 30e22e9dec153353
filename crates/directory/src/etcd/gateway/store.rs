//! A member of etcd as `cluster` asks it.

use std::time::Duration;

use cluster::{Compare, Compared, KeyValue, Op, Store, StoreError, TxnReply, WatchEvent};

use super::{Gateway, Watch};

impl Store for Gateway {
    type Watch = Watch;

    async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), StoreError> {
        Ok(Self::range(self, prefix).await?)
    }

    async fn txn(
        &self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> Result<TxnReply, StoreError> {
        Ok(Self::txn(self, compare, then, or_else).await?.reply())
    }

    async fn watch(&self, prefix: &str, revision: i64) -> Result<Watch, StoreError> {
        Ok(Self::watch(self, prefix, revision).await?)
    }

    async fn compare(&self, prefix: &str, revision: i64) -> Result<Compared, StoreError> {
        Ok(Self::compare(self, prefix, revision).await?)
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<i64, StoreError> {
        Ok(Self::grant_lease(self, ttl).await?)
    }

    async fn keep_lease(&self, lease: i64) -> Result<bool, StoreError> {
        Ok(Self::keep_lease(self, lease).await?)
    }

    async fn revoke_lease(&self, lease: i64) -> Result<(), StoreError> {
        Ok(Self::revoke_lease(self, lease).await?)
    }
}

impl cluster::Watch for Watch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, StoreError> {
        let answer = Self::next(self).await?;
        Ok(answer.events.into_iter().map(Into::into).collect())
    }
}
