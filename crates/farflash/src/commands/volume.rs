//! `farflash volume …`: volumes of a running server, through its API.

mod record;

use std::io::Write;

use clap::{Args, Subcommand};
use control::{
    ApiClient, ApiError, ChangeAuth, ChangeVolume, CreateVolume, CutOff, MetadataBytes,
    SectorBytes, Slo, Volume, VolumeName, VolumeSize, VolumeState,
};
use report::{Align, Table};
use serde::Serialize;
use units::ByteLen;
use user_messages::Failure;
use user_messages::output;
use user_messages::shell;

use super::api::{self, ApiArgs};
use super::restrictions::{ChangeArgs, RestrictionArgs, warn_of_doubts};
use super::tokens::NewTokenArgs;
use crate::interval::Interval;

const CREATE_EXAMPLES: &str = "\
Examples:
  farflash volume create db-1 --size 10TiB
  farflash volume create db-2 --size 1GiB --core 1 --json | jq -r .nqn

  On a host of a service of several, by its name or a label:
    farflash volume create db-6 --size 1TiB --on flash-2
    farflash volume create db-7 --size 1TiB --on rack=r1

  Twice the share of others, or a rate (blocks of 4 KiB a second):
    farflash volume create db-3 --size 1TiB --share 200
    farflash volume create db-4 --size 1TiB --reads-per-second 20000 --writes-per-second 5000

  For one host of one network only, its tokens to files:
    farflash volume create db-5 --size 1TiB --network 192.0.2.0/24 --token-file db-5.token \\
        --host nqn.2014-08.org.nvmexpress:uuid:550e8400-e29b-41d4-a716-446655440000

  For one iSCSI initiator; with iSCSI, the JSON has the commands that connect it:
    farflash volume create db-8 --size 1TiB --host iqn.1993-08.org.debian:01:4711 --json |
        jq -r .iscsi_connect";

const CHANGE_AUTH_EXAMPLES: &str = "\
Hosts that have the volume open stay so, unless --cut ends that.

Examples:
  farflash volume change-auth db-1 --token-file db-1.new
  farflash volume change-auth db-1 --grace 1h
  farflash volume change-auth db-1 --cut";

const NONE: &str = "there are no volumes; `farflash volume create NAME --size SIZE` makes one";

const RESTRICT_EXAMPLES: &str = "\
What is not named stays as it is. Hosts that no longer qualify are cut off at once; to them, and to \
all others that do not, the volume is one that does not exist.

Examples:
  farflash volume restrict db-1 --network 192.0.2.0/24 --network 2001:db8::/32
  farflash volume restrict db-1 --interface vxlan42
  farflash volume restrict db-1 --any-host --any-network --any-interface

  For clients of NBD, which need no token (`volume show` prints its URI):
    farflash volume restrict db-1 --nbd-network 192.0.2.0/24
    farflash volume restrict db-1 --nbd-unix
    farflash volume restrict db-1 --no-nbd";

const SLO_EXAMPLES: &str = "\
Hosts need not reconnect; the next request is served under the new promise.

Examples:
  farflash volume set-slo db-1 --share 50
  farflash volume set-slo db-1 --reads-per-second 1000 --writes-per-second 100";

const RESIZE_EXAMPLES: &str = "\
Connected hosts see the new size without reconnecting.
A smaller size discards at once what lies beyond it, and says how much was written there: shrink the file \
system first. A volume that holds data, or that a host has open, is made smaller only with --lose-data.

Examples:
  farflash volume resize db-1 --size 20TiB
  farflash volume resize db-1 --size 5TiB --if-size 20TiB --lose-data";

/// The message about a change whose outcome could not be printed.
pub(super) const DONE: &str = "what was asked is done; look with `farflash volume list`";

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume, and print the command that connects it
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Create),
    /// List all volumes
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show one volume, and the command that connects it
    Show {
        /// Its name or id
        volume: String,
        #[command(flatten)]
        output: Output,
    },
    /// Change a volume's size
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize {
        /// Its name or id
        volume: String,
        /// Its new size, such as 20TiB
        #[arg(long, value_parser = parse_size)]
        size: VolumeSize,
        /// Make it smaller though it holds data or a host has it open
        #[arg(long)]
        lose_data: bool,
        /// Only if it has this size now, such as 10TiB: another operator may have changed it
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        if_size: Option<VolumeSize>,
        #[command(flatten)]
        output: Output,
    },
    /// Change what a volume is promised of its device
    #[command(after_help = SLO_EXAMPLES)]
    SetSlo {
        /// Its name or id
        volume: String,
        #[command(flatten)]
        slo: SloArgs,
        #[command(flatten)]
        output: Output,
    },
    /// Make new tokens for a volume
    #[command(after_help = CHANGE_AUTH_EXAMPLES)]
    ChangeAuth {
        /// Its name or id
        volume: String,
        /// End the connections that are open
        #[arg(long)]
        cut: bool,
        /// Time for which the former token opens the volume, too, such as 90s or 1h; a mere number is of
        /// seconds
        #[arg(long, value_name = "INTERVAL", value_parser = parse_grace, conflicts_with = "cut")]
        grace: Option<u32>,
        #[command(flatten)]
        tokens: NewTokenArgs,
        #[command(flatten)]
        output: Output,
    },
    /// Change which hosts may open a volume
    #[command(after_help = RESTRICT_EXAMPLES)]
    Restrict {
        /// Its name or id
        volume: String,
        #[command(flatten)]
        change: ChangeArgs,
        #[command(flatten)]
        output: Output,
    },
    /// Record the requests that hosts send to a volume, to replay them with `farflash bench`
    #[command(after_help = record::EXAMPLES)]
    Record(record::Record),
    /// Delete a volume; one that holds data or that a host has open only with --lose-data
    Delete {
        /// Its name or id
        volume: String,
        /// Delete it though it holds data or a host has it open
        #[arg(long)]
        lose_data: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// Its name: 1 to 63 of a-z, 0-9, `.`, `_` and `-`
    name: VolumeName,
    /// Its size as hosts see it, such as 10TiB; space is taken only as it is written
    #[arg(long, value_parser = parse_size)]
    size: VolumeSize,
    /// The core that is to serve it [default: the one with the fewest volumes]
    #[arg(long)]
    core: Option<u32>,
    /// The device that is to hold it, as `device list` has it [default: the one with the most free
    /// space]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The host that is to have it, or a label that its host is to have, such as rack=r1
    /// [default: the host that is asked]
    #[arg(long, value_name = "HOST|KEY=VALUE")]
    on: Option<String>,
    #[command(flatten)]
    slo: SloArgs,
    #[command(flatten)]
    restrictions: RestrictionArgs,
    /// Bytes of metadata beside the data of each block: 8, 16 or 64. For hosts that use them; Linux makes no block
    /// device of such a volume
    #[arg(long, value_name = "BYTES", value_parser = parse_metadata)]
    metadata: Option<MetadataBytes>,
    /// Bytes of a logical block, as hosts address the volume: 512 for hosts that take nothing else, such as VMware ESXi and
    /// older operating systems [default: 4096]
    #[arg(long, value_name = "BYTES", value_parser = parse_sector, conflicts_with = "metadata")]
    sector: Option<SectorBytes>,
    /// The tenant whose it is to be; for operators
    #[arg(long, value_name = "TENANT")]
    owner: Option<String>,
    #[command(flatten)]
    tokens: NewTokenArgs,
    #[command(flatten)]
    output: Output,
}

/// The service level of a volume.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SloArgs {
    /// A part of what is not promised by rate, in proportion to those of others [default: 100]
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(conflicts_with_all = ["reads_per_second", "writes_per_second"])]
    share: Option<u32>,
    /// Blocks of 4 KiB read a second that it can count on; needs a device with a ceiling
    #[arg(long, value_name = "RATE")]
    reads_per_second: Option<u64>,
    /// Blocks of 4 KiB written a second that it can count on; needs a device with a ceiling
    #[arg(long, value_name = "RATE")]
    writes_per_second: Option<u64>,
}

impl SloArgs {
    fn slo(self) -> Option<Slo> {
        match (self.share, self.reads_per_second, self.writes_per_second) {
            (Some(weight), ..) => Some(Slo::Share(weight)),
            (None, None, None) => None,
            (None, reads, writes) => Some(Slo::Rate {
                reads_per_second: reads.unwrap_or(0),
                writes_per_second: writes.unwrap_or(0),
            }),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Output {
    #[command(flatten)]
    api: ApiArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_metadata(text: &str) -> Result<MetadataBytes, String> {
    let bytes: u64 = text.parse().map_err(|error| format!("{error}"))?;
    MetadataBytes::try_from(bytes).map_err(|error| error.to_string())
}

fn parse_sector(text: &str) -> Result<SectorBytes, String> {
    let bytes: u64 = text.parse().map_err(|error| format!("{error}"))?;
    SectorBytes::try_from(bytes).map_err(|error| error.to_string())
}

/// A length of time in seconds.
fn parse_grace(text: &str) -> Result<u32, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let Interval(grace) = text.parse()?;
    u32::try_from(grace.as_secs()).map_err(|_| format!("`{text}` is too long"))
}

fn parse_size(text: &str) -> Result<VolumeSize, String> {
    let size: ByteLen = text.parse().map_err(|error| format!("{error}"))?;
    VolumeSize::try_from(size.0).map_err(|error| error.to_string())
}

impl VolumeCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Create(create) => create.run(),
            Self::List { output } => {
                let list = output.client()?.list()?;
                output.print(&list, |out| match list.volumes.is_empty() {
                    true => writeln!(out, "{NONE}"),
                    false => table(out, &list.volumes),
                })
            }
            Self::Show { volume, output } => {
                let volume = output.client()?.show(&volume)?;
                output.print(&volume, |out| details(out, &volume))
            }
            Self::Resize { volume, size, lose_data, if_size, output } => {
                let (size_bytes, if_size_bytes) = (Some(size), if_size.map(VolumeSize::bytes));
                let request = ChangeVolume {
                    size_bytes,
                    lose_data,
                    if_size_bytes,
                    ..ChangeVolume::default()
                };
                let volume = output.change(&look(&volume), |api| api.change(&volume, &request))?;
                let cut_off = volume.cut_off.map(gone).unwrap_or_default();
                output.print_done(DONE, &volume, |out| {
                    writeln!(out, "{} has now {}{cut_off}", volume.name, ByteLen(volume.size_bytes))
                })
            }
            Self::SetSlo { volume, slo, output } => {
                let slo = slo.slo().ok_or_else(|| {
                    let what = "it is not said what the volume is to be promised";
                    let remedy = "give --share, or --reads-per-second and --writes-per-second";
                    Failure::usage(what, remedy)
                })?;
                let request = ChangeVolume { slo: Some(slo), ..ChangeVolume::default() };
                let volume = output.change(&look(&volume), |api| api.change(&volume, &request))?;
                let line = format!("{} is promised {}", volume.name, volume.slo);
                output.print_done(DONE, &volume, |out| writeln!(out, "{line}"))
            }
            Self::ChangeAuth { volume, cut, grace, tokens, output } => {
                let mut tokens = tokens.make()?;
                let request = ChangeAuth { cut, grace_seconds: grace };
                let look = format!(
                    "the new tokens were shown to no one then; `farflash volume change-auth {}` makes others",
                    shell::word(&volume)
                );
                let made = output.change(&look, |api| api.change_auth(&volume, &request))?;
                tokens.keep(&made)?;
                output.print_done(tokens.unseen(), &tokens.shown(&made), |out| {
                    writeln!(out, "{volume} has new tokens")?;
                    tokens.print(out, &made)
                })
            }
            Self::Restrict { volume, change, output } => {
                let request = change.change()?;
                let volume =
                    output.change(&look(&volume), |api| api.restrict(&volume, &request))?;
                warn_of_absent_interfaces(&volume);
                warn_of_doubts(&volume);
                let text = volume.restrictions.to_string();
                output.print_done(DONE, &volume, |out| {
                    writeln!(out, "{} is open to {text}", volume.name)?;
                    nbd_line(out, &volume)
                })
            }
            Self::Record(record) => record.run(),
            Self::Delete { volume, lose_data, output } => delete(&volume, lose_data, &output),
        }
    }
}

fn delete(volume: &str, lose_data: bool, output: &Output) -> Result<(), Failure> {
    let look = "see whether `farflash volume list` has it still";
    output.change(look, |api| match lose_data {
        true => api.delete_with_data(volume),
        false => api.delete(volume),
    })?;
    let document = serde_json::json!({ "deleted": volume });
    output.print_done(DONE, &document, |out| writeln!(out, "{volume} is deleted"))
}

impl Create {
    fn run(self) -> Result<(), Failure> {
        let Self { name, size, core, device, on, slo, restrictions, .. } = self;
        let Self { metadata: metadata_bytes, sector: sector_bytes, owner, tokens, output, .. } =
            self;
        let mut tokens = tokens.make()?;
        let restrictions = restrictions.restrictions();
        let (size_bytes, slo) = (size, slo.slo());
        let request = CreateVolume {
            name,
            size_bytes,
            core,
            device,
            on,
            slo,
            restrictions,
            metadata_bytes,
            sector_bytes,
            owner,
        };
        let look = format!(
            "see whether `farflash volume list` has it; its tokens were shown to no one, and `farflash volume change-auth {}` makes \
             others",
            shell::word(request.name.as_str())
        );
        let mut made = output.change(&look, |api| api.create(&request))?;
        tokens.keep(&made.tokens)?;
        tokens.keep_from(&mut made);
        warn_of_absent_interfaces(&made.volume);
        warn_of_doubts(&made.volume);
        output.print_done(tokens.unseen(), &tokens.shown(&made), |out| {
            created(out, &made.volume)?;
            tokens.print(out, &made.tokens)
        })
    }
}

impl Output {
    pub(super) fn client(&self) -> Result<ApiClient, Failure> {
        self.api.client()
    }

    /// Asks for a change ([`api::change`]).
    pub(super) fn change<T>(
        &self,
        look: &str,
        ask: impl FnOnce(&ApiClient) -> Result<T, ApiError>,
    ) -> Result<T, Failure> {
        api::change(&self.client()?, look, ask)
    }

    /// Prints `document` as JSON if that is wanted, else what `human` writes.
    pub(super) fn print(
        &self,
        document: &impl Serialize,
        human: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        self.print_done("give it somewhere to go", document, human)
    }

    /// The same for a change that was made; `remedy` is the advice to a user that does not see the outcome.
    pub(super) fn print_done(
        &self,
        remedy: &str,
        document: &impl Serialize,
        human: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        output::print(remedy, |out| {
            if self.json {
                return writeln!(out, "{}", serde_json::to_string_pretty(document)?);
            }
            human(out)
        })
    }
}

/// The command that shows if a volume was changed.
fn look(volume: &str) -> String {
    format!("see `farflash volume show {}`", shell::word(volume))
}

/// The message about data that a smaller size cut off.
fn gone(CutOff { bytes, at_least }: CutOff) -> String {
    let gone = ByteLen(bytes);
    match (at_least, bytes) {
        (false, 0) => "; nothing was written beyond".to_owned(),
        (false, _) => format!("; {gone} written beyond are gone"),
        (true, 0) => "; what was written beyond is gone".to_owned(),
        (true, _) => format!("; more than {gone} written beyond are gone"),
    }
}

/// An interface may come later, so that it is no mistake to name one that is not there; or it is one.
fn warn_of_absent_interfaces(volume: &Volume) {
    if !volume.absent_interfaces.is_empty() {
        output::note(&format!(
            "warning: host {} has no interface {} now, by which hosts would come to {}",
            volume.host,
            volume.absent_interfaces.join(", nor "),
            volume.name,
        ));
    }
}

fn created(out: &mut dyn Write, volume: &Volume) -> std::io::Result<()> {
    writeln!(
        out,
        "created {} ({}), served by core {} at {}",
        volume.name,
        ByteLen(volume.size_bytes),
        volume.portal.core,
        volume.address
    )?;
    writeln!(out, "connect it on a Linux host with:\n  {}", volume.connect)?;
    iscsi_lines(out, volume)?;
    volume.nbd_connect.iter().try_for_each(|line| writeln!(out, "or with:\n  {line}"))
}

/// The commands that connect it by iSCSI, if it is served so.
fn iscsi_lines(out: &mut dyn Write, volume: &Volume) -> std::io::Result<()> {
    let Some(commands) = &volume.iscsi_connect else { return Ok(()) };
    writeln!(out, "or by iSCSI with:")?;
    commands.lines().try_for_each(|line| writeln!(out, "  {line}"))
}

fn details(out: &mut dyn Write, volume: &Volume) -> std::io::Result<()> {
    writeln!(out, "name       {}", volume.name)?;
    writeln!(out, "id         {}", volume.id)?;
    writeln!(out, "nqn        {}", volume.nqn)?;
    writeln!(out, "size       {} ({} bytes)", ByteLen(volume.size_bytes), volume.size_bytes)?;
    if volume.sector_bytes != SectorBytes::default() {
        writeln!(out, "sectors    {} bytes", volume.sector_bytes.bytes())?;
    }
    if volume.metadata_bytes > 0 {
        writeln!(out, "metadata   {} bytes a block", volume.metadata_bytes)?;
    }
    let allocated = volume.allocated_bytes;
    writeln!(out, "allocated  {} ({allocated} bytes)", ByteLen(allocated))?;
    writeln!(out, "state      {}", state_text(volume.state))?;
    let labels = volume.labels.iter().map(|(key, value)| format!(" {key}={value}"));
    writeln!(out, "host       {}{}", volume.host, labels.collect::<String>())?;
    writeln!(out, "address    {}", volume.address)?;
    writeln!(out, "core       {}", volume.portal.core)?;
    writeln!(out, "device     {}", volume.device)?;
    let drive = &volume.drive;
    let known = [&drive.model, &drive.serial].into_iter().flatten();
    let known = known.map(|text| format!("{text}, ")).collect::<String>();
    let health = drive.health.as_deref().unwrap_or("unknown");
    writeln!(out, "drive      {known}{health}")?;
    writeln!(out, "promised   {}", volume.slo)?;
    match &volume.trouble {
        Some(trouble) => writeln!(out, "open to    no host: {trouble}")?,
        None => writeln!(out, "open to    {}", volume.restrictions)?,
    }
    if !volume.absent_interfaces.is_empty() {
        writeln!(out, "absent     interfaces {}", volume.absent_interfaces.join(", "))?;
    }
    if let (Some(until), Some(left)) = (volume.grace_until, volume.grace_seconds_left) {
        let left = super::status::spoken(std::time::Duration::from_secs(left));
        let until = control::utc(until);
        writeln!(out, "grace      the token before opens it for another {left}, until {until}")?;
    }
    nbd_lines(out, volume)?;
    writeln!(out, "owner      {}", volume.owner.as_deref().unwrap_or("-"))?;
    writeln!(out, "connect    {}", volume.connect)?;
    iscsi_lines(out, volume)
}

/// The clients of NBD, if any may open it, and the URIs that they use.
fn nbd_lines(out: &mut dyn Write, volume: &Volume) -> std::io::Result<()> {
    if volume.nbd.are_none() {
        return Ok(());
    }
    writeln!(out, "nbd        {}", volume.nbd)?;
    if volume.nbd_uris.is_empty() {
        writeln!(out, "nbd uri    none: the server was started without --nbd")?;
    }
    volume.nbd_uris.iter().try_for_each(|uri| writeln!(out, "nbd uri    {uri}"))?;
    volume.nbd_connect.iter().try_for_each(|line| writeln!(out, "nbd        {line}"))
}

/// Says where clients of NBD find the volume, if any may open it.
fn nbd_line(out: &mut dyn Write, volume: &Volume) -> std::io::Result<()> {
    if volume.nbd.are_none() {
        return Ok(());
    }
    let uris = match volume.nbd_uris.is_empty() {
        true => "once the server is started with --nbd".to_owned(),
        false => format!("at {}", volume.nbd_uris.join(" or ")),
    };
    writeln!(out, "by NBD it is open to {}, {uris}", volume.nbd)
}

fn state_text(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Online => "online",
        VolumeState::Unreachable => "unreachable",
    }
}

fn table(out: &mut dyn Write, volumes: &[Volume]) -> std::io::Result<()> {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("SIZE", Align::Right),
        ("ALLOCATED", Align::Right),
        ("HOST", Align::Left),
        ("DEVICE", Align::Left),
        ("STATE", Align::Left),
        ("ADDRESS", Align::Left),
        ("CORE", Align::Right),
        ("PROMISED", Align::Left),
        ("ID", Align::Left),
    ]);
    for volume in volumes {
        table.row([
            volume.name.to_string(),
            ByteLen(volume.size_bytes).to_string(),
            ByteLen(volume.allocated_bytes).to_string(),
            volume.host.clone(),
            volume.device.clone(),
            state_text(volume.state).to_owned(),
            volume.address.to_string(),
            volume.portal.core.to_string(),
            volume.slo.to_string(),
            volume.id.to_string(),
        ]);
    }
    write!(out, "{}", table.to_text())
}
