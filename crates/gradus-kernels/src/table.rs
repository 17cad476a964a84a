//! Host data that many operations of a pass read. They are made once and copied once to each device that reads them.

use std::fmt::{Debug, Formatter};
use std::ops::Deref;
use std::sync::Arc;

/// Shared numbers that many operations read, such as the angles of a batch's tokens. The first operation on a device copies them there. The
/// copy lives as long as the table.
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

/// Copies of a host value on devices. They are not part of its value: all compare equal.
#[cfg(feature = "gpu")]
#[derive(Clone, Default)]
pub(crate) struct OnDevices(Arc<std::sync::Mutex<Vec<Made>>>);

#[cfg(feature = "gpu")]
type Made = (burn_cubecl::CubeDevice, Arc<dyn std::any::Any + Send + Sync>);

#[cfg(feature = "gpu")]
impl OnDevices {
    /// Returns the `V` of `device`, which is made at the first request.
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
