//! A kind of device that is added from outside: what stands in this file is all that it takes.
//!
//! `void:SIZE` is a device that reads as zeroes and keeps nothing. Beside the implementation of [`Kind`] it needs one line
//! in a list of kinds; then it is parsed, named, explained, opened, attached and asked like all others.

use std::fmt;
use std::future::{Future, ready};

use device::kind::{
    Attach, Backing, FileSpec, Kind, KindError, MemSpec, ModelSpec, Opened, ParseDeviceError,
    parse_size,
};
use device::layer::Fence;
use device::{MemDevice, device_kinds};
use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits};
use reactor::{CoreConfig, run_on_current_thread};
use units::{ByteLen, Duration, Pba, PbaRange};

device_kinds! {
    /// The specification.
    enum Spec;
    /// The open device.
    enum Source;
    /// The device of a core.
    enum AnyDevice;
    File: FileSpec,
    Void: VoidSpec,
    Mem: MemSpec,
    Model: ModelSpec,
}

/// A device that keeps nothing, of this size.
#[derive(Clone, Debug, PartialEq)]
struct VoidSpec(ByteLen);

impl fmt::Display for VoidSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.0)
    }
}

impl Kind for VoidSpec {
    const SCHEME: &'static str = "void";
    const FORM: &'static str = "void:SIZE";
    const USAGE: &'static str = "void:SIZE";
    const NOUN: &'static str = "nothing at all";

    type Source = u64;
    type Device = VoidDevice;

    fn parse(text: &str) -> Result<Self, ParseDeviceError> {
        parse_size(text).map(Self)
    }

    fn with_options(&self) -> String {
        self.to_string()
    }

    fn backing(&self) -> Backing<'_> {
        Backing::Memory(self.0)
    }

    fn open(&self, backing: Opened) -> Result<u64, KindError> {
        Ok(backing.into_memory().limits().blocks)
    }

    fn attach(blocks: &u64, _: &Attach<'_>) -> VoidDevice {
        VoidDevice { blocks: *blocks }
    }
}

#[derive(Clone)]
struct VoidDevice {
    blocks: u64,
}

impl Device for VoidDevice {
    fn limits(&self) -> DeviceLimits {
        DeviceLimits { blocks: self.blocks, volatile_cache: false, discards: false, pins: false }
    }

    fn read(
        &self,
        _: Pba,
        mut buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        buffer.as_mut_bytes().fill(0);
        ready(Ok(buffer))
    }

    fn write(
        &self,
        _: Pba,
        _: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(Ok(()))
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(Ok(()))
    }

    fn discard(&self, _: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(Ok(()))
    }

    fn is_full_below(&self) -> bool {
        true
    }
}

#[test]
fn an_added_kind_is_parsed_named_and_explained_as_all_others() {
    let spec: Spec = "void:8MiB".parse().expect("a row of the registry");
    assert_eq!(spec, Spec::Void(VoidSpec(ByteLen(8 << 20))));
    assert_eq!((spec.to_string(), spec.kind().noun), ("void:8388608".into(), "nothing at all"));
    assert_eq!(spec.with_options().parse(), Ok(spec.clone()));
    assert_eq!((spec.memory_bytes(), spec.file()), (8 << 20, None));
    let unknown = "nvme:0".parse::<Spec>().expect_err("no kind").to_string();
    assert!(unknown.contains("file:PATH, void:SIZE, mem:SIZE and model:DRIVE"), "{unknown}");
    for (text, scheme) in [("file:a", "file"), ("mem:1MiB", "mem"), ("model:p3700", "model")] {
        assert_eq!(text.parse::<Spec>().expect("as before").kind().scheme, scheme);
    }
}

/// Method: the same requests to the added kind and to memory, through the device of any kind, on a core.
#[test]
fn an_added_kind_is_opened_attached_and_asked_as_all_others() {
    let main = |handle: reactor::Handle| async move {
        let fence = Fence::default();
        let core = Attach { handle: &handle, fence: &fence, timeout: Duration::from_secs(1) };
        for (text, byte) in [("void:8MiB", 0), ("mem:8MiB", 7)] {
            let spec: Spec = text.parse().expect("well formed");
            let memory = MemDevice::new(2048).expect("memory");
            let source = spec.open(Opened::Memory(memory)).expect("it can be");
            assert!(source.file().is_none());
            let device: AnyDevice = source.attach(&core);
            assert_eq!(device.limits().blocks, 2048);
            assert_eq!(device.limits().pins, byte == 7);
            assert_eq!(device.is_full_below(), byte == 0, "told by the kind, not by a default");
            let mut buffer = Buffer::new(2);
            buffer.as_mut_bytes().fill(7);
            device.write(Pba(5), buffer.into_slice()).await.expect("writes");
            device.flush().await.expect("flushes");
            let read = device.read(Pba(6), Buffer::new(1)).await.expect("reads");
            assert!(read.as_bytes().iter().all(|found| *found == byte), "{text}");
            device.discard(PbaRange::new(Pba(5), 2)).await.expect("discards");
        }
    };
    run_on_current_thread(&CoreConfig::default(), main).expect("this host has io_uring");
}
