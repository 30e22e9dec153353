//! The types of all kinds, made of one list.

/// Defines the specification, the open device and the device of a core for a list of [kinds](crate::kind::Kind): three
/// enums with a variant for each kind, and all that they pass on to it. No request is dispatched dynamically.
#[macro_export]
macro_rules! device_kinds {
    (
        $(#[$of_spec:meta])* $spec_vis:vis enum $spec:ident;
        $(#[$of_source:meta])* $source_vis:vis enum $source:ident;
        $(#[$of_device:meta])* $device_vis:vis enum $device:ident;
        $($kind:ident: $row:ty,)+
    ) => {
        $(#[$of_spec])*
        #[derive(Clone, Debug, PartialEq)]
        $spec_vis enum $spec {
            $(#[doc = concat!("[`", stringify!($row), "`].")] $kind($row),)+
        }

        $(#[$of_source])*
        #[derive(Clone)]
        $source_vis enum $source {
            $(#[doc = concat!("Of [`", stringify!($row), "`].")]
            $kind(<$row as $crate::kind::Kind>::Source),)+
        }

        $(#[$of_device])*
        #[derive(Clone)]
        $device_vis enum $device {
            $(#[doc = concat!("Of [`", stringify!($row), "`].")]
            $kind(<$row as $crate::kind::Kind>::Device),)+
        }

        impl $spec {
            /// The registry: a row for each kind.
            pub const KINDS: &'static [$crate::kind::KindRow<Self>] = &[
                $($crate::kind::KindRow::new::<$row>(|text| {
                    <$row as $crate::kind::Kind>::parse(text).map(Self::$kind)
                }),)+
            ];

            /// Returns the row of this device's kind.
            #[must_use]
            pub fn kind(&self) -> &'static $crate::kind::KindRow<Self> {
                let scheme = match self {
                    $(Self::$kind(_) => <$row as $crate::kind::Kind>::SCHEME,)+
                };
                Self::KINDS.iter().find(|row| row.scheme == scheme).expect("each kind has a row")
            }

            /// Returns the backing that the device stands on.
            #[must_use]
            pub fn backing(&self) -> $crate::kind::Backing<'_> {
                match self {
                    $(Self::$kind(spec) => $crate::kind::Kind::backing(spec),)+
                }
            }

            /// Returns the file or drive that it stands on, if there is one.
            #[must_use]
            pub fn file(&self) -> Option<&$crate::kind::FileSpec> {
                match self.backing() {
                    $crate::kind::Backing::File(file) => Some(file),
                    $crate::kind::Backing::Memory(_) => None,
                }
            }

            /// Returns the bytes of tenants' data that it takes of this process' memory, if it lies there.
            #[must_use]
            pub fn memory_bytes(&self) -> u64 {
                match self.backing() {
                    $crate::kind::Backing::File(_) => 0,
                    $crate::kind::Backing::Memory(size) => size.0,
                }
            }

            /// Returns the device with its options, as it can be given again.
            #[must_use]
            pub fn with_options(&self) -> String {
                match self {
                    $(Self::$kind(spec) => {
                        let text = $crate::kind::Kind::with_options(spec);
                        format!("{}:{text}", <$row as $crate::kind::Kind>::SCHEME)
                    })+
                }
            }

            /// Makes the device of its backing, which is open.
            ///
            /// # Errors
            /// The device cannot be as it is described.
            pub fn open(
                &self,
                backing: $crate::kind::Opened,
            ) -> Result<$source, $crate::kind::KindError> {
                match self {
                    $(Self::$kind(spec) => {
                        $crate::kind::Kind::open(spec, backing).map($source::$kind)
                    })+
                }
            }
        }

        impl ::std::str::FromStr for $spec {
            type Err = $crate::kind::ParseDeviceError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::kind::KindRow::parse_any(Self::KINDS, text)
            }
        }

        /// Writes kind and place, without options: the device's name in messages.
        impl ::std::fmt::Display for $spec {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self {
                    $(Self::$kind(spec) => {
                        write!(f, "{}:{spec}", <$row as $crate::kind::Kind>::SCHEME)
                    })+
                }
            }
        }

        impl $source {
            /// Returns the file or drive below, if there is one.
            #[must_use]
            pub fn file(&self) -> Option<&$crate::OwnedDevice> {
                match self {
                    $(Self::$kind(source) => <$row as $crate::kind::Kind>::file(source),)+
                }
            }

            /// Returns the device for one core, with the layers that belong to its kind.
            #[must_use]
            pub fn attach(&self, core: &$crate::kind::Attach<'_>) -> $device {
                match self {
                    $(Self::$kind(source) => {
                        $device::$kind(<$row as $crate::kind::Kind>::attach(source, core))
                    })+
                }
            }
        }

        impl $device {
            /// Returns the device by another way, if it stands on a file or drive that was opened again.
            #[must_use]
            pub fn renewed(
                &self,
                file: $crate::layer::Fenced<$crate::FileDevice>,
            ) -> Option<Self> {
                match self {
                    $(Self::$kind(device) => {
                        <$row as $crate::kind::Kind>::renewed(device, file).map(Self::$kind)
                    })+
                }
            }
        }

        $crate::device_kinds! { @requests $device; $($kind,)+ }
    };

    (@requests $device:ident; $($kind:ident,)+) => {
        // So that several lists may stand in one module.
        const _: () = {
            $crate::pin_project_lite::pin_project! {
                /// A request to a device of any kind. An `async` block would keep room for it twice, and with it every command.
                #[project = Projected]
                enum Request<$($kind,)+> {
                    $($kind { #[pin] request: $kind },)+
                }
            }

            impl<T, $($kind,)+> ::std::future::Future for Request<$($kind,)+>
            where
                $($kind: ::std::future::Future<Output = T>,)+
            {
                type Output = T;

                fn poll(
                    self: ::std::pin::Pin<&mut Self>,
                    context: &mut ::std::task::Context<'_>,
                ) -> ::std::task::Poll<T> {
                    match self.project() {
                        $(Projected::$kind { request } => request.poll(context),)+
                    }
                }
            }

            impl $crate::io_traits::Device for $device {
                fn limits(&self) -> $crate::io_traits::DeviceLimits {
                    match self { $(Self::$kind(device) => device.limits(),)+ }
                }

                fn will_read(
                    &self,
                    range: $crate::units::PbaRange,
                    fetch: impl FnMut(*const [u8]),
                ) {
                    match self { $(Self::$kind(device) => device.will_read(range, fetch),)+ }
                }

                fn pin(
                    &self,
                    range: $crate::units::PbaRange,
                ) -> Option<$crate::io_traits::BufferSlice> {
                    match self { $(Self::$kind(device) => device.pin(range),)+ }
                }

                fn has_room(&self) -> bool {
                    match self { $(Self::$kind(device) => device.has_room(),)+ }
                }

                fn read(
                    &self,
                    pba: $crate::units::Pba,
                    buffer: $crate::io_traits::Buffer,
                ) -> impl ::std::future::Future<
                    Output = Result<$crate::io_traits::Buffer, $crate::io_traits::DeviceError>,
                > + 'static {
                    match self {
                        $(Self::$kind(device) => Request::$kind { request: device.read(pba, buffer) },)+
                    }
                }

                fn write(
                    &self,
                    pba: $crate::units::Pba,
                    data: $crate::io_traits::BufferSlice,
                ) -> impl ::std::future::Future<
                    Output = Result<(), $crate::io_traits::DeviceError>,
                > + 'static {
                    match self {
                        $(Self::$kind(device) => Request::$kind { request: device.write(pba, data) },)+
                    }
                }

                fn write_at_once(
                    &self,
                    pba: $crate::units::Pba,
                    data: &$crate::io_traits::BufferSlice,
                    crc: Option<&mut dyn FnMut(u32)>,
                ) -> Option<Result<(), $crate::io_traits::DeviceError>> {
                    match self { $(Self::$kind(device) => device.write_at_once(pba, data, crc),)+ }
                }

                fn flush(&self) -> impl ::std::future::Future<
                    Output = Result<(), $crate::io_traits::DeviceError>,
                > + 'static {
                    match self {
                        $(Self::$kind(device) => Request::$kind { request: device.flush() },)+
                    }
                }

                fn discard(
                    &self,
                    range: $crate::units::PbaRange,
                ) -> impl ::std::future::Future<
                    Output = Result<(), $crate::io_traits::DeviceError>,
                > + 'static {
                    match self {
                        $(Self::$kind(device) => Request::$kind { request: device.discard(range) },)+
                    }
                }

                fn allocate(
                    &self,
                    range: $crate::units::PbaRange,
                ) -> impl ::std::future::Future<Output = ()> + 'static {
                    match self {
                        $(Self::$kind(device) => Request::$kind { request: device.allocate(range) },)+
                    }
                }

                fn is_full_below(&self) -> bool {
                    match self { $(Self::$kind(device) => device.is_full_below(),)+ }
                }

                fn needs_space_below(&self) {
                    match self { $(Self::$kind(device) => device.needs_space_below(),)+ }
                }
            }
        };
    };
}
