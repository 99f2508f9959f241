//! A table of everyone against everyone, for people.

use std::fmt::{Display, Formatter};

use anyhow::Result;

/// A value per ordered pair of different names: rows are where it comes from, columns where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix<T> {
    names: Vec<String>,
    rows: Vec<Vec<Option<T>>>,
}

impl<T> Matrix<T> {
    /// Asks `value` for each pair of indices into `names`, except of each with itself.
    pub fn build(
        names: Vec<String>,
        mut value: impl FnMut(usize, usize) -> Result<T>,
    ) -> Result<Self> {
        let all = 0..names.len();
        let mut cell = |from, to| if from == to { Ok(None) } else { value(from, to).map(Some) };
        let row = |from| all.clone().map(|to| cell(from, to)).collect();
        let rows = all.clone().map(row).collect::<Result<_>>()?;
        Ok(Self { names, rows })
    }

    /// The same table of something else.
    pub fn try_map<U>(self, mut change: impl FnMut(T) -> Result<U>) -> Result<Matrix<U>> {
        let mut row = |row: Vec<Option<T>>| {
            row.into_iter().map(|cell| cell.map(&mut change).transpose()).collect()
        };
        let rows = self.rows.into_iter().map(&mut row).collect::<Result<_>>()?;
        Ok(Matrix { names: self.names, rows })
    }

    /// Every cell with the names of its row and its column.
    pub fn cells(&self) -> impl Iterator<Item = (&str, &str, &T)> {
        self.names.iter().zip(&self.rows).flat_map(|(from, row)| {
            let cells = self.names.iter().zip(row);
            cells.filter_map(move |(to, cell)| Some((from.as_str(), to.as_str(), cell.as_ref()?)))
        })
    }
}

impl<T: Display> Display for Matrix<T> {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        let texts = |row: &Vec<Option<T>>| {
            let text = |cell: &Option<T>| cell.as_ref().map_or("·".to_owned(), T::to_string);
            row.iter().map(text).collect::<Vec<_>>()
        };
        let rows: Vec<_> = self.rows.iter().map(texts).collect();
        let width =
            self.names.iter().chain(rows.iter().flatten()).map(|it| it.chars().count()).max();
        let width = width.unwrap_or_default() + 2;
        let line = |out: &mut Formatter<'_>, head: &str, cells: &[String]| {
            write!(out, "{head:<width$}")?;
            cells.iter().try_for_each(|cell| write!(out, "{cell:<width$}"))?;
            writeln!(out)
        };
        line(out, "", &self.names)?;
        self.names.iter().zip(&rows).try_for_each(|(name, row)| line(out, name, row))
    }
}
