//! Pictures: shapes with classes, which the page's style colors; texts and scales.

use std::fmt::{self, Write as _};

/// Largest number of rows of a table that is not folded.
const MAX_OPEN_ROWS: usize = 24;

/// A picture, as wide as it is or as the page.
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    /// A rectangle; `title` is shown when the pointer is over it.
    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, title: &str) {
        _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             class=\"{class}\"><title>{}</title></rect>",
            Text(title)
        );
    }

    /// A rectangle of a heat map; `part` of the strongest color.
    pub(super) fn heat(&mut self, (x, y): (f64, f64), size: f64, part: f64, title: &str) {
        let opacity = 0.1 + 0.9 * part;
        _ = write!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{size:.1}\" height=\"{size:.1}\" class=\"heat\" \
             fill-opacity=\"{opacity:.2}\"><title>{}</title></rect>",
            Text(title)
        );
    }

    pub(super) fn line(&mut self, (x, y): (f64, f64), (to_x, to_y): (f64, f64), class: &str) {
        _ = write!(
            self.body,
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" y2=\"{to_y:.1}\" class=\"{class}\"/>"
        );
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        _ = write!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", Text(text));
    }

    /// The picture with a description for readers that do not see it.
    pub(super) fn finish(self, description: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<div class=\"figure\"><svg viewBox=\"0 0 {width:.0} {height:.0}\" \
             style=\"width:{width:.0}px;min-width:min({width:.0}px,40rem)\" \
             role=\"img\" aria-label=\"{}\">{body}</svg></div>\n",
            Text(description)
        )
    }
}

/// Text in HTML.
pub(super) struct Text<'a>(pub(super) &'a str);

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
pub(super) fn ticks(max: f64) -> Vec<f64> {
    if !(max > 0.0 && max.is_finite()) {
        return vec![0.0];
    }
    let rough = max / 5.0;
    let unit = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * unit).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    (0..=5).map(|tick| f64::from(tick) * step).filter(|tick| *tick <= max * 1.000_1).collect()
}

/// A table for readers: the first column to the left, the others to the right. A long one is folded.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
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
    fn text_can_not_leave_its_element() {
        assert_eq!(Text("<script>\"&").to_string(), "&lt;script&gt;&quot;&amp;");
    }
}
