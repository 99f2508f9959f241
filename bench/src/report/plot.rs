//! A plot with two logarithmic axes, as SVG. Pure.

use std::fmt::Write;

use crate::report::sheet::thousands;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 168.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 56.0;
/// The height between two names at the ends of their lines.
const LINE: f64 = 17.0;

/// The viewer's setting selects light or dark. No variables, because some viewers of SVG do not
/// support them.
const STYLE: &str = "
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.paper { fill: #ffffff }
.grid { stroke: #d1d9e0 }
polyline { fill: none; stroke-width: 2.5 }
circle { fill: #ffffff; stroke-width: 2 }
polyline.s2, polyline.s3 { stroke-dasharray: 6 4 }
.s0 { stroke: #0550ae } .s1 { stroke: #bc4c00 } .s2 { stroke: #6f8fc4 } .s3 { stroke: #d19a66 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.paper, circle { fill: #0d1117 }
.grid { stroke: #3d444d }
.s0 { stroke: #79c0ff } .s1 { stroke: #ffa657 } .s2 { stroke: #4f79ad } .s3 { stroke: #b0713d }
}
";

/// Lines of points; the fifth looks like the first.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) across: String,
    pub(crate) up: String,
    pub(crate) series: Vec<Series>,
}

/// All figures are greater than zero.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A logarithmic axis: the logarithms at its ends, and its extent in the picture.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Plot {
    pub(crate) fn render(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let across = Axis::snug(points().map(|(x, _)| x), LEFT, WIDTH - RIGHT);
        let up = Axis::snug(points().map(|(_, y)| y), HEIGHT - BOTTOM, TOP).rounded();
        let body = [self.frame(), grid(across, up), self.lines(across, up)].concat();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n{body}</svg>\n",
            escaped(&self.title)
        )
    }

    fn frame(&self) -> String {
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        let height = f64::midpoint(TOP, HEIGHT - BOTTOM);
        let title = text("title", (LEFT, 26.0), "start", &self.title);
        let across = text("", (middle, HEIGHT - 14.0), "middle", &self.across);
        let up = text("", (0.0, 0.0), "middle", &self.up);
        format!(
            "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n{title}{across}\
             <g transform=\"translate(20 {height}) rotate(-90)\">{up}</g>\n"
        )
    }

    fn lines(&self, across: Axis, up: Axis) -> String {
        let mut drawn = String::new();
        let place = |(x, y): &(f64, f64)| (across.place(*x), up.place(*y));
        let ends = self.series.iter().map(|series| series.points.last().map(place));
        let heights = apart(ends.map(|end| end.map_or(TOP, |(_, y)| y)).collect());
        for ((number, series), height) in self.series.iter().enumerate().zip(heights) {
            let class = format!("s{}", number % 4);
            let places: Vec<_> = series.points.iter().map(place).collect();
            let path: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(drawn, "<polyline class=\"{class}\" points=\"{}\"/>", path.join(" "));
            for (x, y) in places {
                let _ = writeln!(
                    drawn,
                    "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>"
                );
            }
            drawn += &name((WIDTH - RIGHT + 12.0, height), &class, &series.name);
        }
        drawn
    }
}

impl Axis {
    /// From the smallest to the largest of `figures`.
    fn snug(figures: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let logs: Vec<f64> = figures.map(f64::log10).collect();
        let low = logs.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let high = logs.iter().copied().reduce(f64::max).unwrap_or(1.0);
        // A single figure has no extent.
        Self { low, high: if high > low { high } else { low + 1.0 }, from, to }
    }

    /// Rounded to powers of ten at both ends.
    fn rounded(self) -> Self {
        Self { low: self.low.floor(), high: self.high.ceil(), ..self }
    }

    fn place(self, figure: f64) -> f64 {
        let share = (figure.log10() - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    /// The positions of all figures that are one of `leads` times a power of ten.
    fn ticks(self, leads: &[f64]) -> Vec<f64> {
        let inside = |figure: &f64| (self.low..=self.high).contains(&figure.log10());
        let powers = std::iter::successors(Some(self.low.floor()), |power| Some(power + 1.0));
        let powers = powers.take_while(|power| *power <= self.high);
        let figures =
            powers.flat_map(|power| leads.iter().map(move |lead| lead * 10_f64.powf(power)));
        figures.filter(inside).collect()
    }
}

fn grid(across: Axis, up: Axis) -> String {
    let mut drawn = String::new();
    for figure in across.ticks(&[1.0, 2.0, 5.0]) {
        let x = across.place(figure);
        drawn += &rule((x, up.from), (x, up.to));
        drawn += &text("", (x, up.from + 20.0), "middle", &thousands(figure));
    }
    for figure in up.ticks(&[1.0]) {
        let y = up.place(figure);
        drawn += &rule((across.from, y), (across.to, y));
        drawn += &text("", (across.from - 8.0, y + 4.0), "end", &thousands(figure));
    }
    drawn
}

/// The name starts a little to the right of the line's end.
fn name((x, y): (f64, f64), class: &str, words: &str) -> String {
    let end = x + 24.0;
    let line = format!("<polyline class=\"{class}\" points=\"{x:.1},{y:.1} {end:.1},{y:.1}\"/>\n");
    line + &text("", (end + 6.0, y + 4.0), "start", words)
}

fn rule((x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> String {
    format!("<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n")
}

fn text(class: &str, (x, y): (f64, f64), anchor: &str, words: &str) -> String {
    let words = escaped(words);
    format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>\n"
    )
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

/// The heights of the names next to their lines, moved down until none covers another.
fn apart(wanted: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| height(&wanted, *a).total_cmp(&height(&wanted, *b)));
    let mut heights = wanted;
    let mut free = f64::NEG_INFINITY;
    for index in order {
        if let Some(height) = heights.get_mut(index) {
            *height = height.max(free);
            free = *height + LINE;
        }
    }
    heights
}

fn height(heights: &[f64], index: usize) -> f64 {
    heights.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(series: Vec<Series>) -> String {
        let [title, across, up] = ["a < b", "peers", "ms"].map(str::to_owned);
        Plot { title, across, up, series }.render()
    }

    fn series(name: &str, points: &[(f64, f64)]) -> Series {
        Series { name: name.to_owned(), points: points.to_vec() }
    }

    #[test]
    fn a_factor_of_ten_has_the_same_length_everywhere() {
        let axis = Axis::snug([100.0, 10_000.0].into_iter(), 0.0, 200.0);
        let places = [100.0, 1000.0, 10_000.0].map(|figure| axis.place(figure).round());
        assert!(
            places.iter().zip([0.0, 100.0, 200.0]).all(|(is, wanted)| (is - wanted).abs() < 0.1)
        );
    }

    #[test]
    fn ticks_are_round_figures_within_the_axis() {
        let axis = Axis::snug([100.0, 2000.0].into_iter(), 0.0, 1.0);
        let shown: Vec<_> = axis.ticks(&[1.0, 2.0, 5.0]).into_iter().map(thousands).collect();
        assert_eq!(shown, ["100", "200", "500", "1,000", "2,000"]);
        assert_eq!(axis.rounded().ticks(&[1.0]).len(), 3);
    }

    #[test]
    fn names_do_not_cover_each_other() {
        let heights = apart(vec![50.0, 200.0, 52.0, 50.0]);
        assert!((heights[1] - 200.0).abs() < 0.1, "{heights:?}");
        let mut sorted = heights;
        sorted.sort_by(f64::total_cmp);
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= LINE), "{sorted:?}");
    }

    #[test]
    fn every_series_is_drawn_and_named() {
        let drawn = plot(vec![
            series("one", &[(100.0, 5.0), (20_000.0, 90.0)]),
            series("two", &[(100.0, 8.0), (20_000.0, 5000.0)]),
        ]);
        assert_eq!(drawn.matches("<polyline").count(), 4);
        assert_eq!(drawn.matches("<circle").count(), 4);
        assert!(drawn.contains(">one</text>") && drawn.contains(">two</text>"));
        assert!(drawn.contains("a &lt; b") && !drawn.contains("NaN"));
    }

    #[test]
    fn one_point_or_none_can_be_drawn() {
        for points in [&[][..], &[(5.0, 5.0)][..]] {
            let drawn = plot(vec![series("lonely", points)]);
            assert!(drawn.ends_with("</svg>\n") && !drawn.contains("NaN"), "{drawn}");
        }
    }
}
