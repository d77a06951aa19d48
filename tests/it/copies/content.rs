//! What is copied, and what is put right.

use super::*;

#[tokio::test]
async fn a_source_that_is_made_edited_and_deleted() {
    let shop = Shop::shared("copy").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();

    shop.sync("s", json!({ "destinationNamespace": far })).await;
    let words = shop.reads("s", "SourceNotFound").await;
    assert!(words.contains(&format!("{here}/settings")), "{words}");

    shop.map(&here, "settings", json!({ "data": { "a": "1", "b": "2" }, "binaryData": { "c": "AAEC" } })).await;
    let copy = shop.copied(&far, "settings", json!({ "a": "1", "b": "2" })).await;
    assert_eq!(copy.binary_data.unwrap()["c"].0, [0, 1, 2]);
    shop.reads("s", "Synced").await;

    shop.edit(&here, "settings", json!({ "data": { "a": "x", "b": null, "d": "" }, "binaryData": null })).await;
    let copy = shop.copied(&far, "settings", json!({ "a": "x", "d": "" })).await;
    assert_eq!(copy.binary_data, None);

    shop.drop(&here, "settings").await;
    shop.reads("s", "SourceNotFound").await;
    assert_eq!(version(&shop.copied(&far, "settings", json!({ "a": "x", "d": "" })).await), version(&copy));
}
