//! `disco plot`

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, ensure};
use clap::Args;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::chart;
use crate::output::OutputFile;
use crate::report::{Figures, Report, Series};
use crate::values;

/// Width and height of the panels, in pixels.
const SIZE: (u32, u32) = (1200, 560);
const MARGIN: u32 = 12;
/// Series in a row of the legend, and the height of a row.
const LEGEND_COLUMNS: usize = 2;
const LEGEND_ROW: u32 = 22;
/// Colors that color-blind readers can distinguish on white: seven of Okabe and Ito (2008), and darker ones. Their
/// number is coprime to that of [`MARKERS`], so 60 series differ in color or marker.
const COLORS: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(136, 34, 85),
    RGBColor(153, 153, 51),
    RGBColor(51, 34, 136),
    RGBColor(119, 119, 119),
    RGBColor(127, 72, 20),
];
/// Corners of the markers, in pixels relative to the point: disc, square, triangle, diamond, inverted triangle.
const MARKERS: [&[(i32, i32)]; 5] = [
    &[(-2, -5), (2, -5), (5, -2), (5, 2), (2, 5), (-2, 5), (-5, 2), (-5, -2)],
    &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
    &[(0, -5), (5, 4), (-5, 4)],
    &[(0, -6), (5, 0), (0, 6), (-5, 0)],
    &[(0, 5), (5, -4), (-5, -4)],
];

/// Draw results of `disco bench --json` into one picture or page: latency and bus bandwidth against size
#[derive(Args)]
pub(crate) struct Plot {
    /// Outputs of `disco bench --json`
    #[arg(required = true, value_name = "FILE.json")]
    results: Vec<PathBuf>,
    /// File to write: a picture (`.svg`), or a page with pictures and tables (`.html`)
    #[arg(short, long, value_name = "FILE.svg|FILE.html", value_parser = values::picture)]
    out: PathBuf,
}

impl Plot {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let read = |path: &PathBuf| -> anyhow::Result<Report> {
            let named = || format!("{}", path.display());
            serde_json::from_slice(&fs::read(path).with_context(named)?)
                .with_context(|| format!("{} is not an output of `disco bench --json`", path.display()))
        };
        let reports: Vec<Report> = self.results.iter().map(read).collect::<anyhow::Result<_>>()?;
        draw(&reports, OutputFile::open(&self.out)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Draws results into a file.
pub(crate) fn draw(reports: &[Report], file: OutputFile) -> anyhow::Result<()> {
    let series: Vec<Series> =
        reports.iter().flat_map(Report::series).filter(|series| !series.points.is_empty()).collect();
    ensure!(!series.is_empty(), "nothing to draw: the results have no rows");
    if file.is_page() {
        return file.write(chart::page(reports, &series).as_bytes());
    }
    let mut picture = String::new();
    picture_of(&series, &mut picture).map_err(|error| anyhow!("can't draw: {error}"))?;
    file.write(picture.as_bytes())
}

fn picture_of(series: &[Series], picture: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let rows = series.len().div_ceil(LEGEND_COLUMNS) as u32;
    let size = (SIZE.0, SIZE.1 + LEGEND_ROW * rows + MARGIN);
    let area = SVGBackend::with_string(picture, size).into_drawing_area();
    area.fill(&WHITE)?;
    let (panels, below) = area.split_vertically(SIZE.1);
    legend(&below, series)?;
    let (left, right) = panels.split_horizontally(SIZE.0 / 2);
    let time = |figures: &Figures| figures.time_us;
    let bandwidth = |figures: &Figures| figures.busbw;
    let (low, high) = range(series, time);
    panel(&left, ("latency", "time (µs)"), series, (low / 1.5..high * 1.5).log_scale(), time)?;
    let (_, high) = range(series, bandwidth);
    panel(&right, ("bus bandwidth", "busbw (GB/s)"), series, 0.0..(high * 1.1).max(1e-3), bandwidth)?;
    area.present()?;
    Ok(())
}

/// Smallest and largest value of all points.
fn range(series: &[Series], value: impl Fn(&Figures) -> f64) -> (f64, f64) {
    let values = series.iter().flat_map(|series| &series.points).map(|(_, figures)| value(figures));
    values.fold((f64::INFINITY, 0.0), |(low, high), value| (low.min(value), high.max(value)))
}

fn panel<Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    (title, unit): (&str, &str),
    series: &[Series],
    values: Y,
    value: impl Fn(&Figures) -> f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let sizes = || series.iter().flat_map(|series| &series.points).map(|point| point.0);
    let (first, last) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(MARGIN)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((first / 1.2..last * 1.2).log_scale().base(2.0), values)?;
    chart
        .configure_mesh()
        .x_desc("size (bytes)")
        .y_desc(unit)
        .x_label_formatter(&|size| bytes(*size))
        .y_label_formatter(&|value| number(*value))
        .light_line_style(WHITE)
        .draw()?;
    for (index, series) in series.iter().enumerate() {
        let color = COLORS[index % COLORS.len()].stroke_width(2);
        let points = || series.points.iter().map(|(size, figures)| (*size, value(figures)));
        chart.draw_series(LineSeries::new(points(), color))?;
        chart.draw_series(points().map(|point| EmptyElement::at(point) + mark(index, 0)))?;
    }
    Ok(())
}

/// The names of the series with their lines and markers, below the panels, where they cover no line.
fn legend(area: &DrawingArea<SVGBackend<'_>, Shift>, series: &[Series]) -> Result<(), Box<dyn std::error::Error>> {
    let width = (SIZE.0 - 2 * MARGIN) as i32 / LEGEND_COLUMNS as i32;
    for (index, series) in series.iter().enumerate() {
        let (row, column) = ((index / LEGEND_COLUMNS) as i32, (index % LEGEND_COLUMNS) as i32);
        let at = (MARGIN as i32 + column * width, row * LEGEND_ROW as i32 + LEGEND_ROW as i32 / 2);
        let color = COLORS[index % COLORS.len()].stroke_width(2);
        let line = EmptyElement::at(at) + PathElement::new([(0, 0), (20, 0)], color) + mark(index, 10);
        area.draw(&line)?;
        area.draw(&Text::new(series.name.clone(), (at.0 + 28, at.1 - 7), ("sans-serif", 14)))?;
    }
    Ok(())
}

/// The marker of a series, `right` pixels to the right of its point.
fn mark(series: usize, right: i32) -> Polygon<(i32, i32)> {
    let corners: Vec<_> = MARKERS[series % MARKERS.len()].iter().map(|(x, y)| (x + right, *y)).collect();
    Polygon::new(corners, COLORS[series % COLORS.len()].filled())
}

/// A size as an axis label, such as `64K`.
fn bytes(size: f64) -> String {
    let (unit, shift) = match size {
        ..1024.0 => ("", 0),
        ..1_048_576.0 => ("K", 10),
        ..1_073_741_824.0 => ("M", 20),
        _ => ("G", 30),
    };
    format!("{}{unit}", number(size / f64::from(1u32 << shift)))
}

fn number(value: f64) -> String {
    match value {
        10.0.. => format!("{value:.0}"),
        1.0.. => format!("{}", (value * 10.0).round() / 10.0),
        _ => format!("{}", (value * 1000.0).round() / 1000.0),
    }
}
