use super::*;
use ParseDeviceError::{NoPlace, NotWholeBlocks, Size, Twice, UnknownOption, Value};
use reactor::FlushPolicy;
use units::ParseByteLenError;

#[test]
fn devices_read_as_people_write_them() {
    let file =
        |path: &str, size, flush| DeviceSpec::File(FileSpec { path: path.into(), size, flush });
    let model = |drive: &str, size, scale, seed| {
        let drive = drive.to_owned();
        DeviceSpec::Model(ModelSpec { drive, size: ByteLen(size), scale, seed })
    };
    let gib8 = Some(ByteLen(8 << 30));
    for (text, spec) in [
        ("file:a", file("a", None, FlushPolicy::Auto)),
        ("file:/x/y:z", file("/x/y:z", None, FlushPolicy::Auto)),
        ("file:a,size=8GiB", file("a", gib8, FlushPolicy::Auto)),
        ("file:a,flush=never,size=8GiB", file("a", gib8, FlushPolicy::Never)),
        ("mem:1GiB", DeviceSpec::Mem(MemSpec { size: ByteLen(1 << 30) })),
        ("model:p3700", model("p3700", 1 << 30, None, 1)),
        ("model:a.toml,seed=7,scale=0.1,size=8GiB", model("a.toml", 8 << 30, Some(0.1), 7)),
    ] {
        assert_eq!(text.parse(), Ok(spec), "{text}");
    }
    let shown = |text: &str| text.parse::<DeviceSpec>().map(|spec| spec.to_string());
    assert_eq!(shown("file:a,size=8GiB").as_deref(), Ok("file:a"));
    assert_eq!(shown("mem:1536MiB").as_deref(), Ok("mem:1.5GiB"));
    assert_eq!(shown("model:p3700,seed=7").as_deref(), Ok("model:p3700"));
}

/// A proposal for a device names the one that was measured.
#[test]
fn a_device_is_written_as_it_can_be_given_again() {
    for text in [
        "file:a",
        "file:a,flush=never",
        "file:a,flush=always",
        "mem:1.5GiB",
        "mem:4198400B",
        "model:p3700",
        "model:a.toml,size=8GiB,scale=0.1,seed=7",
    ] {
        let written = text.parse::<DeviceSpec>().map(|spec| spec.with_options());
        assert_eq!(written.as_deref(), Ok(text));
    }
}

#[test]
fn each_mistake_has_its_own_message() {
    let refused = |text: &str| text.parse::<DeviceSpec>().expect_err(text);
    for (text, said) in [
        (
            "/dev/sda",
            "`/dev/sda` names no kind of device; a file or drive is file:/dev/sda, memory is mem:SIZE, ",
        ),
        ("nvme:0", "`nvme:` is no kind of device; there are file:PATH, mem:SIZE and model:DRIVE"),
        ("file:", "`file:` is not followed by a path; write file:PATH, such as"),
        ("mem:", "`mem:` is not followed by a size; write mem:SIZE"),
        ("model:", "`model:` is not followed by a drive; write model:p3600"),
        (
            "mem:1GiB,flush=never",
            "`flush=never` is no option of mem:, which has none but the ceiling",
        ),
        ("file:a,sise=1GiB", "`sise=1GiB` is no option of file:; there are size=SIZE"),
        ("model:p3700,fast", "`fast` is no option of model:; there are size=SIZE, scale=FACTOR"),
        ("file:a,flush=maybe", "`flush=maybe`: flush is auto, always or never"),
        ("model:p3700,scale=0", "`scale=0`: write a factor from 0.0001 to 100"),
        ("model:p3700,seed=x", "`seed=x`: write a whole number"),
    ] {
        assert!(refused(text).to_string().starts_with(said), "{text}: {}", refused(text));
    }
    assert!(matches!(refused("file:,size=1GiB"), NoPlace { scheme: "file", .. }));
    assert!(matches!(refused("file:a,b"), UnknownOption { option, .. } if option == "b"));
    assert!(matches!(refused("model:p3700,scale=101"), Value { key: "scale", .. }));
    for (text, error) in [
        ("file:a,size=1GiB,size=2GiB", Twice("size")),
        ("model:p3700,seed=1,seed=2", Twice("seed")),
        ("mem:1 elephant", Size(ParseByteLenError::UnknownUnit("elephant".into()))),
        ("mem:0", NotWholeBlocks(0)),
        ("mem:5000", NotWholeBlocks(5000)),
    ] {
        assert_eq!(refused(text), error, "{text}");
    }
}

/// A row would never be reached whose scheme another has, and users would not know of a kind whose row says nothing.
#[test]
fn every_row_of_the_registry_is_reached_by_its_own_scheme() {
    for row in DeviceSpec::KINDS {
        let same = DeviceSpec::KINDS.iter().filter(|other| other.scheme == row.scheme);
        assert_eq!(same.count(), 1, "{}", row.scheme);
        for text in [row.form, row.usage] {
            assert!(text.starts_with(&format!("{}:", row.scheme)), "{text}");
        }
        assert!(forms(false).contains(row.form) && forms(true).contains(row.usage));
        assert!(!row.noun.is_empty());
        let nothing = format!("{}:", row.scheme).parse::<DeviceSpec>();
        assert!(matches!(nothing, Err(NoPlace { scheme, .. }) if scheme == row.scheme));
    }
    for text in ["file:a", "mem:1GiB", "model:p3700"] {
        let spec: DeviceSpec = text.parse().expect("sound");
        assert!(text.starts_with(spec.kind().scheme), "{text}");
        assert_eq!(spec.file().is_some(), text.starts_with("file:"));
    }
}

/// A description of a drive that is none is told with advice, and nothing is opened.
#[test]
fn a_modelled_drive_that_cannot_be_is_refused() {
    let open = |text: &str| {
        let spec: DeviceSpec = text.parse().expect("well formed");
        let memory = MemDevice::new(1 << 14).expect("memory");
        spec.open(Opened::Memory(memory)).err()
    };
    assert_eq!(open("model:p3700"), None);
    let unknown = open("model:floppy").expect("no drive");
    assert!(unknown.is_usage && unknown.what.contains("p3600, p3700"), "{unknown}");
    let missing = open("model:/no/such.toml").expect("no file");
    assert!(!missing.is_usage && missing.what.contains("cannot be read"), "{missing}");
}
