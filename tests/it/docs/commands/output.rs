//! Comparison of a page's output with the printed output.

/// Returns whether both outputs are the same, except for ages, times and values that AWS chooses. Columns may be
/// narrower.
pub fn matches_page(expected: &[String], printed: &str) -> bool {
    let tokens = |line: &str| line.split_whitespace().map(masked).collect::<Vec<_>>();
    let printed = printed
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(tokens);
    printed.eq(expected.iter().map(|line| tokens(line)))
}

/// Returns the same word for all values that differ from run to run.
fn masked(word: &str) -> String {
    let is_age = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word
                .chars()
                .all(|c| c.is_ascii_digit() || "smhd".contains(c))
    };
    if is_age(word) {
        return "AGE".into();
    }
    if let Some((name, _)) = word
        .split_once("-alb-")
        .filter(|_| word.ends_with(".elb.amazonaws.com"))
    {
        return format!("{name}-alb-DNS");
    }
    without_time(word)
}

/// Returns the word with `0` for each digit of a date or time.
fn without_time(word: &str) -> String {
    let chars: Vec<char> = word.chars().collect();
    let mut masked = chars.clone();
    for shape in ["0000-00-00T00:00:00", "0000-00-00", "00:00:00"] {
        let shape: Vec<char> = shape.chars().collect();
        for at in 0..(chars.len() + 1).saturating_sub(shape.len()) {
            let fits = shape.iter().zip(&chars[at..]).all(|(s, c)| {
                if *s == '0' {
                    c.is_ascii_digit()
                } else {
                    s == c
                }
            });
            if fits {
                masked[at..at + shape.len()].copy_from_slice(&shape);
            }
        }
    }
    masked.into_iter().collect()
}

#[test]
fn volatile_values_are_not_compared() {
    let expected = [
        "NAME   AGE".to_owned(),
        "web    5s".into(),
        r#"{"time":"2026-02-11T20:44:21Z","value":"3"}"#.into(),
    ];
    let is = |text| matches_page(&expected, text);
    assert!(is(
        "NAME AGE\n\nweb  2m11s\n{\"time\":\"2027-12-31T01:02:03Z\",\"value\":\"3\"}\n"
    ));
    assert!(
        !is("NAME AGE\nweb  2m11s\n{\"time\":\"2027-12-31T01:02:03Z\",\"value\":\"4\"}\n"),
        "another value"
    );
    assert!(!is("NAME AGE\nweb  2m11s\n"), "a line less");
    assert!(
        !is("NAME AGE\nweb  soon\n{\"time\":\"2027-12-31T01:02:03Z\",\"value\":\"3\"}\n"),
        "no age"
    );
    assert_eq!(masked("a-alb-12.us-east-1.elb.amazonaws.com"), "a-alb-DNS");
    assert_eq!(masked("11:20:45Z"), "00:00:00Z");
}
