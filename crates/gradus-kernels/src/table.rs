//! What many operations of a pass read besides tensors: made once on the host, and copied once to each device that reads it.

use std::fmt::{Debug, Formatter};
use std::ops::Deref;
use std::sync::Arc;

/// Numbers that many operations read, shared: the angles of a batch's tokens, for example. A device gets its own copy when
/// the first operation there reads them, and keeps it as long as the table lives.
#[derive(Clone)]
pub struct Table<T> {
    values: Arc<[T]>,
    #[cfg(feature = "gpu")]
    pub(crate) copies: OnDevices,
}

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> From<Vec<T>> for Table<T> {
    fn from(values: Vec<T>) -> Self {
        Self {
            values: values.into(),
            #[cfg(feature = "gpu")]
            copies: OnDevices::default(),
        }
    }
}

impl<T> FromIterator<T> for Table<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        values.into_iter().collect::<Vec<T>>().into()
    }
}

impl<T: Debug> Debug for Table<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.values.fmt(f)
    }
}

/// What was made for devices of something on the host. It is no part of its value: all are equal.
#[cfg(feature = "gpu")]
#[derive(Clone, Default)]
pub(crate) struct OnDevices(Arc<std::sync::Mutex<Vec<Made>>>);

#[cfg(feature = "gpu")]
type Made = (burn_cubecl::CubeDevice, Arc<dyn std::any::Any + Send + Sync>);

#[cfg(feature = "gpu")]
impl OnDevices {
    /// The `V` of `device`, made when it is asked for first.
    pub(crate) fn get<V: Send + Sync + 'static>(
        &self,
        device: &burn_cubecl::CubeDevice,
        make: impl FnOnce() -> V,
    ) -> Arc<V> {
        let mut made = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let of_device = made.iter().filter(|(on, _)| on == device);
        if let Some(known) = of_device.into_iter().find_map(|(_, value)| Arc::clone(value).downcast().ok()) {
            return known;
        }
        let value = Arc::new(make());
        made.push((device.clone(), value.clone()));
        value
    }
}

#[cfg(feature = "gpu")]
impl PartialEq for OnDevices {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(feature = "gpu")]
impl Eq for OnDevices {}

#[cfg(feature = "gpu")]
impl Debug for OnDevices {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDevices")
    }
}
