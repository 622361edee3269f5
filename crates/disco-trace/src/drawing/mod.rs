//! Pictures and pages in the look of the [report](crate::report): its style sheet, shapes, scales and tables.

mod svg;

pub use crate::format::{bytes, number};
pub use svg::{Anchor, Svg, Text, decades, table, ticks};

/// The style of pages and pictures, with light and dark colors, which color-blind readers can distinguish.
const STYLE: &str = include_str!("style.css");
/// Number of colors of series in the style.
const SERIES: usize = 6;
/// Width of a picture that fills a page, in pixels.
pub const PAGE_WIDTH: f64 = 900.0;

/// An HTML page, which loads nothing from elsewhere. `body` is HTML.
pub fn page(title: &str, body: &str) -> String {
    let title = Text(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}</body>\n</html>\n"
    )
}

/// The class that gives a line, a shape or a swatch of a legend the color of a series; colors repeat after six series.
pub fn series(index: usize) -> String {
    format!("series-{}", index % SERIES)
}
