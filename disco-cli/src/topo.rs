//! `disco topo`

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use disco::nccl::p2p::{self, RANKS, Site, Survey, Topology};
use disco::{Error, Unavailable};
use serde::Serialize;

use crate::output::{columns, json, wrapped};

/// Show this machine's GPUs, the links between them, and whether peer-to-peer kernels can use them
#[derive(Args)]
pub(crate) struct Topo {
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// The result, as JSON.
#[derive(Serialize)]
struct Finding {
    host: String,
    devices: Vec<Device>,
    /// Number of links from each device to each device; null if unknown.
    links: Option<Vec<Vec<u32>>>,
    topology: &'static str,
    /// Each device's relay in a hybrid cube mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    relays: Option<[usize; 8]>,
    /// Whether an environment variable forced the topology, regardless of the links.
    forced: bool,
    why: Vec<String>,
    /// The code that runs an all-reduce; null without devices.
    all_reduce: Option<String>,
    /// Whether kernels can be built; null without devices.
    kernels: Option<Kernels>,
}

/// Whether peer-to-peer kernels can be built, as JSON.
#[derive(Serialize)]
struct Kernels {
    ready: bool,
    /// The compiler that builds them, or why they can't be built.
    detail: String,
}

/// One device, as JSON.
#[derive(Serialize)]
struct Device {
    device: String,
    name: String,
    bus_id: String,
}

impl Topo {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<ExitCode> {
        let finding = match p2p::topology() {
            Ok(survey) => Finding::of(survey),
            // A machine without GPUs is a result, not a failure.
            Err(Error::Unavailable(absent)) => Finding::none(&absent),
            Err(error) => return Err(error.into()),
        };
        if self.json {
            json(out, &finding)?;
        } else {
            print(&finding, out)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Finding {
    fn of(Survey { host, sites, mesh, decision, .. }: Survey) -> Self {
        let topology = decision.topology;
        Self {
            host,
            links: mesh.ok().map(|mesh| mesh.rows().to_vec()),
            topology: topology.name(),
            relays: match topology {
                Topology::HybridCubeMesh { relay, .. } => Some(relay),
                _ => None,
            },
            forced: decision.is_forced,
            why: decision.why,
            all_reduce: Some(all_reduce(topology, sites.len())),
            kernels: Some(match p2p::readiness() {
                Ok(detail) => Kernels { ready: true, detail },
                Err(detail) => Kernels { ready: false, detail },
            }),
            devices: sites.into_iter().map(Device::of).collect(),
        }
    }

    fn none(absent: &Unavailable) -> Self {
        let (devices, why) = (Vec::new(), vec![absent.to_string()]);
        let topology = Topology::Unknown.name();
        let (host, links, relays, forced, all_reduce, kernels) = (p2p::host(), None, None, false, None, None);
        Self { host, devices, links, topology, relays, forced, why, all_reduce, kernels }
    }
}

impl Device {
    fn of(Site { device, name, bus_id }: Site) -> Self {
        Self { device: device.to_string(), name, bus_id: bus_id.to_string() }
    }
}

fn all_reduce(topology: Topology, devices: usize) -> String {
    if !topology.has_kernels() {
        "NCCL alone".to_owned()
    } else if RANKS.contains(&devices) {
        "kernels possible (backend cuda_p2p)".to_owned()
    } else {
        format!("kernels possible (backend cuda_p2p) among {} to {} devices", RANKS.start(), RANKS.end())
    }
}

fn print(finding: &Finding, out: &mut impl Write) -> io::Result<()> {
    let Finding { host, devices, links, topology, why, all_reduce, kernels, .. } = finding;
    writeln!(out, "{:<10} {host}", "host")?;
    for Device { device, name, bus_id } in devices {
        writeln!(out, "{device:<10} {bus_id}  {name}")?;
    }
    if let Some(links) = links {
        matrix(links, out)?;
    }
    match all_reduce {
        Some(_) => writeln!(out, "{:<10} {topology}", "topology")?,
        None => writeln!(out, "{:<10} none", "devices")?,
    }
    let width = columns();
    let mut line = |head: &str, text: &str| {
        let lines = wrapped(&format!("{head:<10} {text}"), width, 11);
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    };
    why.iter().try_for_each(|why| line("", why))?;
    all_reduce.iter().try_for_each(|all_reduce| line("all_reduce", all_reduce))?;
    kernels.iter().try_for_each(|kernels| line("kernels", &kernels.detail))
}

fn matrix(links: &[Vec<u32>], out: &mut impl Write) -> io::Result<()> {
    write!(out, "{:<10}", "links")?;
    (0..links.len()).try_for_each(|to| write!(out, " {to:>2}"))?;
    writeln!(out)?;
    for (from, row) in links.iter().enumerate() {
        write!(out, "{from:>10}")?;
        for (to, links) in row.iter().enumerate() {
            if from == to { write!(out, "  -")? } else { write!(out, " {links:>2}")? }
        }
        writeln!(out)?;
    }
    Ok(())
}
