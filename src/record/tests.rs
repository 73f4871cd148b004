use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::simulated::restored;
use super::*;

#[derive(Debug, PartialEq)]
struct Inner {
    name: String,
    payload: Vec<u8>,
}

record!(Inner { name, payload });

#[derive(Debug, PartialEq)]
struct Outer {
    number: u64,
    cached: u32,
    first: Inner,
    parts: Vec<Inner>,
    wait: Option<Duration>,
    counts: BTreeMap<u16, u64>,
}

record!(Outer { number, cached = 7, first, parts, wait, counts });

fn outer() -> Outer {
    Outer {
        number: u64::MAX,
        cached: 3,
        first: Inner {
            name: String::new(),
            payload: Vec::new(),
        },
        parts: ["", "hello", "world"]
            .map(|payload| Inner {
                name: format!("<{payload}>"),
                payload: payload.into(),
            })
            .into(),
        wait: Some(Duration::from_millis(1500)),
        counts: BTreeMap::from([(101, 4), (404, 1)]),
    }
}

#[test]
fn a_value_is_the_same_after_it_was_restored() {
    let before = outer();
    let mut to = Saver::default();
    let _ = before.save(&mut to);
    assert_eq!((to.byte_count(), to.descriptors().len()), (10, 0));
    let after = restored(&before);
    assert_eq!(
        after,
        Outer {
            cached: 7,
            ..outer()
        }
    );
}

#[test]
fn a_default_takes_no_room_and_differs_from_nothing() {
    let before = Outer {
        number: 0,
        cached: 7,
        parts: Vec::new(),
        wait: Some(Duration::ZERO),
        counts: BTreeMap::new(),
        ..outer()
    };
    let record = before.save(&mut Saver::default());
    assert_eq!(record, json!({"first": {}, "wait": 0}));
    assert_eq!(restored(&before), before);
}

#[test]
fn unknown_fields_are_skipped_and_missing_ones_have_defaults() {
    let mut to = Saver::default();
    let before = outer();
    let mut record = before.save(&mut to);
    record["news"] = json!({"of": "a later version"});
    for name in ["wait", "number", "parts"] {
        record.as_object_mut().expect("an object").remove(name);
    }
    let mut from = Loader::rehearsal(10, 0);
    let after = Outer::restore(record, &mut from).expect("a record");
    assert_eq!((after.wait, after.number), (None, 0));
    assert!(after.parts.is_empty());
}

/// An error must tell the operator which part of the state the new program cannot read.
#[test]
fn an_error_names_the_place() {
    let restore = |change: fn(&mut Value)| {
        let (mut to, before) = (Saver::default(), outer());
        let mut record = before.save(&mut to);
        change(&mut record);
        let mut from = Loader::rehearsal(10, 0);
        Outer::restore(record, &mut from)
            .expect_err("it is wrong")
            .to_string()
    };
    assert_eq!(
        restore(|record| record["parts"][2]["name"] = json!(4)),
        "parts.2.name: a string is expected"
    );
    assert_eq!(
        restore(|record| record["parts"][1]["payload"] = json!([6, 5])),
        "parts.1.payload: the bytes are not there"
    );
    assert_eq!(
        restore(|record| record["number"] = json!(-1)),
        "number: a number is expected, or it is too large"
    );
    let remove =
        |record: &mut Value| drop(record.as_object_mut().expect("an object").remove("first"));
    assert_eq!(restore(remove), "first: the field is missing");
    assert_eq!(
        restore(|record| *record = json!([])),
        "an object is expected"
    );
}

#[test]
fn a_descriptor_is_taken_once() {
    let file = std::fs::File::open("/dev/null").expect("a file");
    let mut to = Saver::default();
    let value = to.descriptor(std::os::fd::AsFd::as_fd(&file));
    assert_eq!(to.descriptors().len(), 1);
    let mut from = Loader::rehearsal(0, 1);
    assert!(from.is_rehearsal());
    assert_eq!(from.left(), 1);
    assert!(matches!(from.take(&value), Ok(Restored::Rehearsed)));
    assert!(from.take(&value).is_err());
    assert_eq!(from.left(), 0);
}
