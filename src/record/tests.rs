use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::simulated::{Memory, load_again, restored};
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

/// The record of a value.
fn saved<T: Record>(value: &T) -> Value {
    let mut to = Saver::default();
    value.save(&mut to);
    serde_json::from_slice(&to.take_text()).expect("JSON")
}

/// Checks a record that refers to up to 10 bytes.
fn rehearse<T: Record>(record: &Value) -> Result<T, RecordError> {
    let text = record.to_string().into_bytes();
    Loader::rehearsal(10, 0).read(text, T::restore)
}

#[test]
fn a_value_is_the_same_after_it_was_restored() {
    let before = outer();
    let mut to = Saver::default();
    before.save(&mut to);
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
    assert_eq!(saved(&before), json!({"first": {}, "wait": 0}));
    assert_eq!(restored(&before), before);
}

#[test]
fn unknown_fields_are_skipped_in_any_order_and_missing_ones_have_defaults() {
    let mut record = saved(&outer());
    record["apples"] = json!({"of": ["a", {"later": "\"}version\\"}], "count": -1.5e3});
    record["cached"] = json!([[], {}, "", null, true]);
    for name in ["wait", "number"] {
        record.as_object_mut().expect("an object").remove(name);
    }
    record["parts"] = Value::Null;
    // The members of this object are sorted, and so have another order than the fields.
    let after: Outer = rehearse(&record).expect("a record");
    assert_eq!((after.wait, after.number, after.cached), (None, 0, 7));
    assert!(after.parts.is_empty());
    assert_eq!(after.counts, outer().counts);
}

/// An error must tell the operator which part of the state the new program cannot read.
#[test]
fn an_error_names_the_place() {
    let restore = |change: fn(&mut Value)| {
        let mut record = saved(&outer());
        change(&mut record);
        rehearse::<Outer>(&record)
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
    to.put_descriptor(std::os::fd::AsFd::as_fd(&file));
    assert_eq!(to.descriptors().len(), 1);
    let mut from = Loader::rehearsal(0, 1);
    assert!(from.is_rehearsal());
    assert_eq!(from.left(), 1);
    let text = to.take_text();
    let taken = from.read(text.clone(), Loader::take);
    assert!(matches!(taken, Ok(Restored::Rehearsed)));
    assert!(from.read(text, Loader::take).is_err());
    assert_eq!(from.left(), 0);
}

/// How a job is done.
#[derive(Debug, PartialEq)]
enum Job {
    Idle,
    Named(String),
    Moved(u16, i32),
    Sent { text: String, tries: u32 },
    Unsaved(u32),
}

record!(enum Job {
    Idle,
    Named(name),
    Moved(from, by),
    Sent { text(Beside), tries = 9 },
    Unsaved(..),
});

#[test]
fn each_variant_of_an_enum_is_the_same_after_it_was_restored() {
    let sent = |tries| Job::Sent {
        text: "äöü".into(),
        tries,
    };
    for job in [Job::Idle, Job::Named("a\"b\\\n".into()), Job::Moved(3, -4)] {
        assert_eq!(restored(&job), job);
    }
    assert_eq!(restored(&sent(3)), sent(9));
    assert_eq!(saved(&Job::Idle), json!("Idle"));
    assert_eq!(
        saved(&Job::Moved(3, -4)),
        json!({"Moved": {"from": 3, "by": -4}})
    );
}

#[test]
fn a_variant_without_a_record_or_of_another_version_is_not_restored() {
    let error = |record: Value| rehearse::<Job>(&record).expect_err("wrong").to_string();
    assert_eq!(saved(&Job::Unsaved(1)), Value::Null);
    assert_eq!(error(Value::Null), "a string is expected");
    assert_eq!(error(json!("Unsaved")), "an unknown value");
    assert_eq!(error(json!({"Later": 3})), "an unknown value");
    assert_eq!(error(json!({"Named": 3})), "Named: a string is expected");
    assert_eq!(error(json!({"Idle": 3})), "JSON is expected");
    assert_eq!(error(json!("Named")), "Named: a string is expected");
    assert_eq!(error(json!({"Named": "a", "Other": 3})), "JSON is expected");
}

#[derive(Debug, PartialEq)]
struct Limited {
    limit: u32,
    used: Counter,
}

#[derive(Debug, PartialEq)]
struct Counter {
    most: u32,
    count: u32,
}

record!(with(most: u32) Limited {
    limit = most,
    used into(Counter { most, count: 0 }),
} => Self::checked);

impl Limited {
    fn checked(self) -> Result<Self, RecordError> {
        let is_valid = self.used.count <= self.limit;
        let wrong = || RecordError::new("too much is used");
        is_valid.then_some(self).ok_or_else(wrong)
    }
}

state!(Counter {
    keep most,
    count,
});

#[derive(Debug, PartialEq)]
struct Several {
    all: Vec<Option<Limited>>,
    limit: u32,
}

state!(Several {
    all(*limit),
    keep limit,
});

#[test]
fn fields_are_restored_with_an_argument_and_checked() {
    let several = |limit, counts: &[Option<u32>]| {
        let used = |count| Counter { most: limit, count };
        let all = counts.iter().map(|count| {
            count.map(|count| Limited {
                limit,
                used: used(count),
            })
        });
        let all = all.collect();
        Several { all, limit }
    };
    let mut next = several(8, &[]);
    load_again(&several(5, &[None, Some(4), Some(0)]), &mut next);
    assert_eq!(next, several(8, &[None, Some(4), Some(0)]));
    let text = br#"{"all":[null,{"used":{"count":9}}]}"#.to_vec();
    let mut from = Loader::rehearsal(0, 0);
    let error = from.read(text, |from| next.load(from));
    assert_eq!(
        error.expect_err("wrong").to_string(),
        "all.1: too much is used"
    );
}

/// The state may come from a program with a bug. It must not make this one panic, loop or allocate much.
#[test]
fn any_text_is_read_or_refused() {
    let text = saved(&outer()).to_string();
    for end in 0..text.len() {
        let cut = text.as_bytes()[..end].to_vec();
        let read = Loader::rehearsal(10, 0).read(cut, Outer::restore);
        read.expect_err("it is incomplete");
    }
    let mut random = crate::random::Random::new(3);
    for _ in 0..20_000 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..=random.below(3) {
            let pieces = b"\"\\{}[],:0123456789-nulltruefalse\xc3 ";
            let at = random.below(bytes.len());
            bytes[at] = pieces[random.below(pieces.len())];
        }
        let memory = Box::new(Memory(b"helloworld".to_vec()));
        let _ = Loader::new(memory, 10, Vec::new()).read(bytes, Outer::restore);
    }
    let deep = [b"{\"unknown\":".to_vec(), vec![b'['; 1 << 20]].concat();
    let read = Loader::rehearsal(0, 0).read(deep.clone(), Outer::restore);
    read.expect_err("it is incomplete");
    let read = Loader::rehearsal(0, 0).read(deep, Value::restore);
    read.expect_err("it is too deep");
}

#[test]
fn values_of_the_standard_library_are_the_same_after_they_were_restored() {
    let address: IpAddr = "2001:db8::7".parse().expect("an address");
    assert_eq!(restored(&address), address);
    assert_eq!(restored(&[0u8, 10, 255]), [0, 10, 255]);
    assert_eq!(
        restored(&[i32::MIN, -1, 0, i32::MAX]),
        [i32::MIN, -1, 0, i32::MAX]
    );
    assert_eq!(restored(&Some(true)), Some(true));
    assert_eq!(restored(&(u64::MAX, 0.25f32)), (u64::MAX, 0.25));
    let value = json!({"a": [1, {"b\"": null}], "c": "}"});
    assert_eq!(restored(&value), value);
}
