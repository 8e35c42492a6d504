//! Tables for people: columns as wide as their widest cell, numbers to the right.

/// Lays out rows below headers, two spaces between columns.
pub(crate) fn render(headers: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row.get(column).map_or(0, |cell| cell.chars().count()));
        cells.chain([headers[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headers.len()).map(width).collect();
    let numeric: Vec<bool> = (0..headers.len()).map(|column| is_numeric(rows, column)).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, cell) in cells.enumerate() {
            let gap = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            let (left, right) = if numeric[column] { (gap.as_str(), "") } else { ("", gap.as_str()) };
            text.push_str(&format!("{left}{cell}{right}  "));
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut headers.iter().copied());
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    text += &line(&mut rules.iter().map(String::as_str));
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// A column of numbers, dashes and blanks.
fn is_numeric(rows: &[Vec<String>], column: usize) -> bool {
    let number = |cell: &String| cell.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-'));
    rows.iter().filter_map(|row| row.get(column)).all(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_to_the_left_and_numbers_to_the_right() {
        let rows =
            [vec!["a".into(), "5".into(), "x".into()], vec!["longer".into(), "1234".into(), String::new()]];
        let text = render(&["name", "n", "note"], &rows);
        assert_eq!(
            text,
            "name       n  note\n\
             ------  ----  ----\n\
             a          5  x\n\
             longer  1234\n"
        );
    }

    #[test]
    fn widths_count_characters_and_not_bytes() {
        let text = render(&["µs", "b"], &[vec!["µµµ".into(), "x".into()]]);
        assert_eq!(text, "µs   b\n---  -\nµµµ  x\n");
    }
}
