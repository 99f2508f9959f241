//! A page of metrics in the text format of Prometheus. Pure.

use std::fmt::{Arguments, Display, Write};

/// Grows by one series after the other. No label may hold a sentence.
#[derive(Debug, Default)]
pub struct Page(String);

/// How many values are at most as large as each bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The bounds, and the number of values up to each.
    buckets: Vec<(f64, u64)>,
    count: u64,
    sum: f64,
}

/// For times in seconds.
impl Default for Histogram {
    fn default() -> Self {
        Self::new(&[0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
    }
}

impl Histogram {
    /// For shares from 0 to 1.
    pub fn of_shares() -> Self {
        Self::new(&[0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    }

    fn new(bounds: &[f64]) -> Self {
        Self { buckets: bounds.iter().map(|bound| (*bound, 0)).collect(), count: 0, sum: 0.0 }
    }

    pub fn observe(&mut self, value: f64) {
        for (bound, count) in &mut self.buckets {
            *count += u64::from(value <= *bound);
        }
        self.count += 1;
        self.sum += value;
    }
}

impl Extend<f64> for Histogram {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.observe(value));
    }
}

impl Page {
    pub fn into_text(self) -> String {
        self.0
    }

    /// 1 for the present one of `states`, and 0 for all others.
    pub fn state<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        (states, present): ([&str; N], Option<&str>),
    ) {
        let values = states.map(|state| (state, u8::from(present == Some(state))));
        self.by_label(name, help, label, values);
    }

    pub fn by_label(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, impl Display)>,
    ) {
        self.family(name, "gauge", help);
        for (value, count) in values {
            self.sample(name, &[(label, value.as_ref())], count);
        }
    }

    pub fn counters(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl AsRef<str>, u64)>,
    ) {
        self.family(name, "counter", help);
        for (value, count) in values {
            self.sample(name, &[(label, value.as_ref())], count);
        }
    }

    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (bound, count) in &histogram.buckets {
            self.sample(&bucket, &[("le", &bound.to_string())], count);
        }
        self.sample(&bucket, &[("le", "+Inf")], histogram.count);
        self.sample(&format!("{name}_sum"), &[], histogram.sum);
        self.sample(&format!("{name}_count"), &[], histogram.count);
    }

    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        self.line(format_args!("{name}{labels} {value}"));
    }

    fn line(&mut self, line: Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// In the notation of Prometheus.
pub fn number(value: f64) -> String {
    if value == f64::INFINITY { "+Inf".to_owned() } else { value.to_string() }
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_counts_the_values_up_to_its_bound() {
        let mut histogram = Histogram::of_shares();
        histogram.extend([0.0, 0.05, 0.06, 1.0]);
        let counts: Vec<u64> = histogram.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 1, 1, 2, 3, 3, 3, 4]);
        assert_eq!(histogram.count, 4);
        assert!((histogram.sum - 1.11).abs() < 1e-9);
    }
}
