//! The picture of `disco topo`: devices on a circle, with a line for the links of each pair.

use std::f64::consts::TAU;

use disco_trace::drawing::{Anchor, Svg};

use super::Finding;
use crate::output::wrapped;

const WIDTH: f64 = 640.0;
const RADIUS: f64 = 190.0;
const CENTER: (f64, f64) = (WIDTH / 2.0, 250.0);
/// Size of a device.
const BOX: (f64, f64) = (96.0, 40.0);
/// Height of the first text below the circle, and the distance of two lines.
const TEXTS: f64 = 500.0;
const LINE: f64 = 18.0;
/// Largest number of characters of a line.
const MAX_CHARS: usize = 100;
/// Widest line of links.
const MAX_LINKS: u32 = 6;

pub(super) fn draw(finding: &Finding) -> String {
    let Finding { host, devices, links, topology, why, all_reduce, .. } = finding;
    let state = match all_reduce {
        Some(all_reduce) => vec![format!("topology: {topology}"), format!("all_reduce: {all_reduce}")],
        None => vec!["devices: none".to_owned()],
    };
    let top = if devices.is_empty() { LINE } else { TEXTS };
    let texts: Vec<String> = [format!("host: {host}")].into_iter().chain(state).chain(why.iter().cloned()).collect();
    let lines: Vec<String> = texts.iter().flat_map(|text| wrapped(text, MAX_CHARS, 0)).collect();
    let mut picture = Svg::new(WIDTH, top + LINE * (lines.len() + 1) as f64);
    let at = |index: usize| {
        let angle = TAU * index as f64 / devices.len() as f64 - TAU / 4.0;
        let radius = if devices.len() == 1 { 0.0 } else { RADIUS };
        (CENTER.0 + radius * angle.cos(), CENTER.1 + radius * angle.sin())
    };
    for (from, row) in links.iter().flatten().enumerate() {
        for (to, links) in row.iter().enumerate().take(from).filter(|(_, links)| **links > 0) {
            let title = format!("{} and {}: {links} links", devices[to].device, devices[from].device);
            picture.link(at(from), at(to), f64::from((*links).min(MAX_LINKS)), &title);
        }
    }
    for (index, device) in devices.iter().enumerate() {
        let (x, y) = at(index);
        let title = format!("{} ({})", device.name, device.bus_id);
        picture.rect((x - BOX.0 / 2.0, y - BOX.1 / 2.0), BOX, "device", &title);
        picture.text((x, y - 2.0), Anchor::Middle, &device.device);
        picture.text((x, y + 13.0), Anchor::Middle, &device.bus_id);
    }
    for (index, line) in lines.iter().enumerate() {
        picture.text((16.0, top + LINE * index as f64), Anchor::Start, line);
    }
    picture.file(&format!("Devices of {host} and the links between them"))
}
