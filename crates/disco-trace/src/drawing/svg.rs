//! Pictures: shapes with classes, which the style colors; texts and scales.

use std::fmt::{self, Write as _};

use super::STYLE;

/// Largest number of rows of a table that is not folded.
const MAX_OPEN_ROWS: usize = 24;

/// A picture. Later shapes cover earlier ones. A page that is narrower than the picture shrinks it.
#[derive(Clone, Debug)]
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// The place of a text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "SVG has no other anchors")]
pub enum Anchor {
    /// The text begins at the point.
    Start,
    /// The middle of the text is at the point.
    Middle,
    /// The text ends at the point.
    End,
}

impl Svg {
    /// An empty picture. All lengths are in pixels.
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    /// A rectangle at its upper left corner; `title` is shown when the pointer is over it.
    pub fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, title: &str) {
        _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             class=\"{class}\"><title>{}</title></rect>",
            Text(title)
        );
    }

    /// A rectangle of a heat map; `part` of the strongest color.
    pub fn heat(&mut self, (x, y): (f64, f64), size: f64, part: f64, title: &str) {
        let opacity = 0.1 + 0.9 * part;
        _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{size:.1}\" height=\"{size:.1}\" class=\"heat\" \
             fill-opacity=\"{opacity:.2}\"><title>{}</title></rect>",
            Text(title)
        );
    }

    /// A straight line.
    pub fn line(&mut self, (x, y): (f64, f64), (to_x, to_y): (f64, f64), class: &str) {
        _ = write!(
            self.body,
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" y2=\"{to_y:.1}\" class=\"{class}\"/>"
        );
    }

    /// A line through points.
    pub fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        _ = write!(self.body, "<polyline points=\"{}\" class=\"{class}\"/>", points.join(" "));
    }

    /// A point of a line; `title` is shown when the pointer is over it.
    pub fn point(&mut self, (x, y): (f64, f64), class: &str, title: &str) {
        _ = write!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" class=\"{class}\"><title>{}</title></circle>",
            Text(title)
        );
    }

    /// A connection of two places; `title` is shown when the pointer is over it.
    pub fn link(&mut self, (x, y): (f64, f64), (to_x, to_y): (f64, f64), width: f64, title: &str) {
        _ = write!(
            self.body,
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" y2=\"{to_y:.1}\" class=\"link\" \
             stroke-width=\"{width:.1}\"><title>{}</title></line>",
            Text(title)
        );
    }

    /// A text on one line.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        _ = write!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", Text(text));
    }

    /// The picture as a file of its own.
    pub fn file(self, description: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\" aria-label=\"{}\">\n<style>\n{STYLE}</style>\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" class=\"page\"/>\n{body}\n</svg>\n",
            Text(description)
        )
    }

    /// The picture as a part of a page, with a description for readers that do not see it.
    pub fn figure(self, description: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<div class=\"figure\"><svg viewBox=\"0 0 {width:.0} {height:.0}\" \
             style=\"width:{width:.0}px;min-width:min({width:.0}px,40rem)\" \
             role=\"img\" aria-label=\"{}\">{body}</svg></div>\n",
            Text(description)
        )
    }
}

/// Text in HTML and SVG.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a wrapper")]
pub struct Text<'a>(pub &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '&' => f.write_str("&amp;"),
            '"' => f.write_str("&quot;"),
            other => f.write_char(other),
        })
    }
}

/// Up to six round numbers from 0 to `max`.
pub fn ticks(max: f64) -> Vec<f64> {
    if !(max > 0.0 && max.is_finite()) {
        return vec![0.0];
    }
    let rough = max / 5.0;
    let unit = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * unit).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (0..=5).map(|tick| f64::from(tick) * step).filter(|tick| *tick <= max * 1.000_1).collect()
}

/// The powers of ten from `low` to `high`, with two and five times them if there are few. The ends of a range with fewer than
/// two of these numbers.
pub fn decades(low: f64, high: f64) -> Vec<f64> {
    if !(low > 0.0 && high.is_finite() && low <= high) {
        return Vec::new();
    }
    let powers = low.log10().floor() as i32..=high.log10().floor() as i32;
    let steps: &[f64] = if powers.clone().count() > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10.0_f64.powi(power)));
    let ticks: Vec<f64> = all.filter(|tick| (low..=high).contains(tick)).collect();
    if ticks.len() < 2 { vec![low, high] } else { ticks }
}

/// A table for readers: the first column to the left, the others to the right. A long one is folded.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let row = |cell: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells.map(|text| format!("<{cell}>{}</{cell}>", Text(text))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let body: String = rows.iter().map(|cells| row("td", &mut cells.iter().map(String::as_str))).collect();
    let head = row("th", &mut head.into_iter());
    let table =
        format!("<div class=\"figure\"><table>\n<thead>{head}</thead>\n<tbody>{body}</tbody>\n</table></div>\n");
    match rows.len() {
        0..=MAX_OPEN_ROWS => table,
        more => format!("<details><summary>Table of {more} rows</summary>\n{table}</details>\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_largest_value() {
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.7), [0.0, 0.2, 0.4, 0.6000000000000001]);
        assert_eq!(ticks(0.0), [0.0]);
        assert_eq!(ticks(f64::NAN), [0.0]);
    }

    #[test]
    fn decades_are_round_and_within_the_range() {
        assert_eq!(decades(3.0, 60.0), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(decades(0.5, 20_000.0), [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!(decades(3.1, 4.8), [3.1, 4.8]);
        assert!(decades(0.0, 1.0).is_empty() && decades(1.0, f64::INFINITY).is_empty());
    }

    #[test]
    fn text_can_not_leave_its_element() {
        assert_eq!(Text("<script>\"&").to_string(), "&lt;script&gt;&quot;&amp;");
    }
}
