//! Each alert has a page, each page an alert, and each panel of the dashboard says what a bad value looks like.

use super::*;

#[test]
fn every_alert_has_a_description_and_a_page() {
    let table = text("docs/runbooks.md");
    let mut paged = BTreeSet::new();
    for Alert {
        name: alert,
        r#for,
        labels,
        annotations,
        ..
    } in alerts()
    {
        assert!(alert.starts_with("Quartermaster"), "{alert}");
        let severity = &labels["severity"];
        assert!(
            ["critical", "warning"].contains(&severity.as_str()) && labels.len() == 1,
            "{alert}: {labels:?}"
        );
        let described: Vec<_> = annotations.keys().map(String::as_str).collect();
        assert_eq!(
            described,
            ["description", "runbook_url", "summary"],
            "{alert}"
        );
        assert!(
            annotations["summary"].ends_with('.') && annotations["description"].ends_with('.'),
            "{alert}"
        );

        let page = format!("{alert}.md");
        assert_eq!(annotations["runbook_url"], format!("docs/runbooks/{page}"));
        let text = text(&format!("docs/runbooks/{page}"));
        assert!(text.starts_with(&format!("# {alert}\n")), "{page}");
        for part in [
            "**Meaning.**",
            "**Impact.**",
            "## Find the cause",
            "## Fix",
            "```sh",
        ] {
            assert!(text.contains(part), "{page} has no {part}");
        }
        let row = table
            .lines()
            .find(|line| line.starts_with(&format!("| [{alert}](runbooks/{page}) | {severity} |")));
        let row = row.unwrap_or_else(|| panic!("{alert} has no row, or another severity"));
        let minutes = r#for.trim_end_matches('m');
        assert!(
            minutes.is_empty() || row.contains(&format!("{minutes} minutes")),
            "{alert}: {for:?} is not in {row}"
        );
        paged.insert(page);
    }
    let pages = std::fs::read_dir(Path::new(ROOT).join("docs/runbooks")).unwrap();
    let pages: BTreeSet<_> = pages
        .map(|page| page.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(pages, paged, "pages, and those of alerts");
}

#[test]
fn every_panel_has_a_position_a_title_a_description_and_a_unit() {
    let mut titles = BTreeSet::new();
    let mut occupied = BTreeMap::new();
    for panel in panels() {
        let title = panel["title"].as_str().unwrap().to_owned();
        assert!(
            !title.is_empty() && titles.insert(title.clone()),
            "{title:?} appears twice"
        );
        assert!(
            panel["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.') && text.contains("Bad: ")),
            "{title} does not say what a bad value looks like"
        );
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str();
        assert!(
            unit.is_some_and(|unit| !unit.is_empty()),
            "{title} has no unit"
        );
        let position = &panel["gridPos"];
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| position[side].as_u64().unwrap());
        assert!(x + w <= 24, "{title}");
        for (x, y) in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            if let Some(other) = occupied.insert((x, y), title.clone()) {
                panic!("{title} lies upon {other}");
            }
        }
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}
