//! Tests of damaged plans: each is rejected with the right code, or, if accepted, contains only valid references.

use std::mem::offset_of;

use meganeura_core::random::SplitMix64;
use meganeura_plugin_abi as abi;
use meganeura_plugin_abi::author::Failure;
use meganeura_plugin_abi::plain;
use meganeura_plugin_abi::view::{self, PlanView};

use super::{encoded, encoded_call, plan, sample};

/// Distance between the damaged positions. Only a sample of them is tested under Miri, because it is slow.
const STEP: usize = if cfg!(miri) { 307 } else { 1 };

/// Returns the offset of a field of the header.
macro_rules! header {
    ($field:ident) => {
        offset_of!(abi::Plan, $field)
    };
    ($field:ident . $part:ident) => {
        offset_of!(abi::Plan, $field) + offset_of!(abi::Table, $part)
    };
}

/// Returns the offset of a field of a table's element: `element!(bytes, operands[3]: Operand.buffer)`.
macro_rules! element {
    ($bytes:expr, $table:ident[$i:expr]: $ty:ident.$field:ident) => {{
        let header: abi::Plan = plain::read($bytes, 0).expect("it is there");
        let table = header.$table;
        assert!($i < table.count);
        table.offset as usize + $i as usize * table.stride as usize + offset_of!(abi::$ty, $field)
    }};
}

fn set32(bytes: &mut [u8], place: usize, value: u32) {
    bytes[place..place + 4].copy_from_slice(&value.to_le_bytes());
}

fn set64(bytes: &mut [u8], place: usize, value: u64) {
    bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
}

/// Reads a damaged plan, and returns the failure.
fn refused(bytes: &[u8]) -> Failure {
    let failure = PlanView::read(bytes).expect_err("it is damaged");
    assert_eq!(failure.code, abi::STATUS_INVALID_PLAN, "{failure}");
    failure
}

/// Checks that an accepted plan contains only valid references.
fn assert_sound(plan: &PlanView) {
    for buffer in &plan.buffers {
        let elements: usize = buffer.dims.iter().product();
        assert!(elements * buffer.dtype.bytes() <= buffer.bytes);
        assert!(buffer.offset + buffer.bytes as u64 <= plan.arena_bytes);
        assert!(buffer.data.is_empty() || buffer.data.len() == buffer.bytes);
    }
    for dispatch in &plan.dispatches {
        for operand in dispatch.inputs.iter().chain(&dispatch.outputs) {
            match plan.buffers.get(operand.buffer as usize) {
                Some(buffer) => assert!(operand.elements() * operand.dtype.bytes() <= buffer.bytes),
                None => assert!(operand.buffer == abi::NONE && plan.buffers.is_empty()),
            }
        }
        if let Some((operand, _)) = dispatch.index {
            assert_eq!(dispatch.inputs[operand].dtype, view::DType::U32);
        }
    }
    for segment in &plan.segments {
        assert!(segment.dispatches.end <= plan.dispatches.len());
        assert!(segment.skip_if.is_none_or(|b| plan.buffers[b as usize].bytes == 4));
    }
}

#[test]
fn a_plan_that_is_cut_off_is_refused() {
    for whole in [encoded(), encoded_call()] {
        for len in (0..whole.len()).step_by(STEP) {
            let mut cut = whole[..len].to_vec();
            refused(&cut);
            // Also if the plan's own size field is the truncated size.
            if len >= header!(arena_bytes) {
                set64(&mut cut, header!(total_bytes), len as u64);
                refused(&cut);
            }
        }
    }
}

#[test]
fn what_names_something_that_is_not_there_is_refused_by_name() {
    let whole = encoded();
    let far = u64::MAX - 7;
    type Damage<'a> = (&'a str, &'a dyn Fn(&mut Vec<u8>));
    let cases: &[Damage] = &[
        ("start with the magic number of a plan", &|b| b[0] = 0),
        ("version 2", &|b| set32(b, header!(version), 2)),
        ("header says to have 215", &|b| set32(b, header!(header_size), 215)),
        ("header says to have 4294967295", &|b| {
            set32(b, header!(header_size), u32::MAX)
        }),
        ("differs from its declared length", &|b| {
            set64(b, header!(total_bytes), u64::MAX)
        }),
        ("2 is not a kind of plan", &|b| set32(b, header!(kind), 2)),
        ("7 is not a precision", &|b| set32(b, header!(precision), 7)),
        ("buffers has the offset 20", &|b| set64(b, header!(buffers.offset), 20)),
        ("steps has the offset 0", &|b| set64(b, header!(steps.offset), 0)),
        ("offset of operands", &|b| set64(b, header!(operands.offset), far)),
        ("offset of slots", &|b| set32(b, header!(slots.count), u32::MAX)),
        ("offset of bytes", &|b| set32(b, header!(bytes.count), u32::MAX - 1)),
        ("offset of dispatches", &|b| {
            set32(b, header!(dispatches.stride), u32::MAX - 3)
        }),
        ("operands has a stride of 12 bytes", &|b| {
            set32(b, header!(operands.stride), 12)
        }),
        ("segments has a stride of 26 bytes", &|b| {
            set32(b, header!(segments.stride), 26)
        }),
        ("integers has a stride of 16 bytes", &|b| {
            set32(b, header!(integers.stride), 16)
        }),
        ("bytes has a stride of 0 bytes", &|b| set32(b, header!(bytes.stride), 0)),
        ("overlap", &|b| {
            let header: abi::Plan = plain::read(b, 0).expect("it is there");
            set64(b, header!(slots.offset), header.steps.offset);
        }),
        ("a buffer leaves the arena", &|b| set64(b, header!(arena_bytes), 5999)),
        ("a buffer leaves the arena", &|b| {
            let place = element!(b, buffers[3]: Buffer.offset);
            set64(b, place, u64::MAX - 4);
        }),
        ("a buffer has 23 bytes", &|b| {
            let place = element!(b, buffers[0]: Buffer.bytes);
            set64(b, place, 23);
        }),
        ("a constant of 8 bytes has 4 bytes", &|b| {
            let place = element!(b, buffers[3]: Buffer.data_bytes);
            set64(b, place, 4);
        }),
        ("offset of a constant", &|b| {
            let place = element!(b, buffers[3]: Buffer.data_offset);
            set64(b, place, far);
        }),
        ("no element type 5", &|b| {
            let place = element!(b, buffers[3]: Buffer.dtype);
            set32(b, place, 5);
        }),
        ("no buffer 10", &|b| {
            let place = element!(b, operands[1]: Operand.buffer);
            set32(b, place, 10);
        }),
        ("names no buffer", &|b| {
            let place = element!(b, operands[1]: Operand.buffer);
            set32(b, place, abi::NONE);
        }),
        ("an operand takes 28 bytes, and buffer 4 has 2", &|b| {
            let place = element!(b, operands[1]: Operand.buffer);
            set32(b, place, 4);
        }),
        ("the integers", &|b| {
            let place = element!(b, operands[1]: Operand.dims);
            set32(b, place + 4, u32::MAX);
        }),
        ("the operands", &|b| {
            let place = element!(b, dispatches[0]: Dispatch.inputs);
            set32(b, place, u32::MAX);
        }),
        ("an operand that does not exist", &|b| {
            let place = element!(b, dispatches[1]: Dispatch.index_operand);
            set32(b, place, 2);
        }),
        ("not u32", &|b| {
            let place = element!(b, dispatches[1]: Dispatch.index_operand);
            set32(b, place, 1);
        }),
        ("a text leaves its table", &|b| {
            let place = element!(b, dispatches[1]: Dispatch.label);
            set32(b, place, u32::MAX);
        }),
        ("not UTF-8", &|b| {
            let header: abi::Plan = plain::read(b, 0).expect("it is there");
            b[header.bytes.offset as usize] = 0xff;
        }),
        ("dispatches that do not exist", &|b| {
            let place = element!(b, segments[1]: Segment.count);
            set32(b, place, u32::MAX);
        }),
        ("a buffer that does not exist", &|b| {
            let place = element!(b, segments[1]: Segment.skip_if);
            set32(b, place, 10);
        }),
        ("24 bytes, expected one number", &|b| {
            let place = element!(b, segments[1]: Segment.skip_if);
            set32(b, place, 0);
        }),
        ("unknown kind 7", &|b| {
            let place = element!(b, attributes[0]: Attribute.kind);
            set32(b, place, 7);
        }),
        ("a dimension is negative", &|b| {
            let header: abi::Plan = plain::read(b, 0).expect("it is there");
            set64(b, header.integers.offset as usize, u64::MAX);
        }),
        ("a shape is too large", &|b| {
            let header: abi::Plan = plain::read(b, 0).expect("it is there");
            set64(b, header.integers.offset as usize, i64::MAX as u64);
        }),
        ("a value that does not exist", &|b| {
            let place = element!(b, slots[0]: Slot.index);
            set32(b, place, 3);
        }),
        ("a value that does not exist", &|b| {
            // The second step would have its own result.
            let place = element!(b, slots[2]: Slot.step);
            set32(b, place, 1);
        }),
        ("the steps", &|b| {
            let place = element!(b, programs[0]: Program.steps);
            set32(b, place + 4, 5);
        }),
    ];
    for (words, damage) in cases {
        let mut bytes = whole.clone();
        damage(&mut bytes);
        assert_ne!(bytes, whole, "{words}");
        let failure = refused(&bytes);
        assert!(failure.message.contains(words), "'{words}' in: {failure}");
    }
}

/// An invalid attribute value is refused, for each kind of attribute.
#[test]
fn values_of_attributes_are_checked() {
    let whole = encoded();
    let kinds = [
        (abi::ATTR_BOOL, 2, "as flag, found 2"),
        (abi::ATTR_DTYPE, 1 << 32, "no element type 4294967296"),
        (abi::ATTR_PROGRAM, 1, "programs"),
        (abi::ATTR_PROGRAM, u64::MAX, "no program"),
    ];
    for (kind, value, words) in kinds {
        let mut bytes = whole.clone();
        let place = element!(&bytes, attributes[0]: Attribute.kind);
        set32(&mut bytes, place, kind);
        let place = element!(&bytes, attributes[0]: Attribute.value);
        set64(&mut bytes, place, value);
        let failure = refused(&bytes);
        assert!(failure.message.contains(words), "'{words}' in: {failure}");
    }
    // The attributes of steps come before those of the call that contains the program, and steps
    // must not contain programs themselves.
    let mut bytes = whole.clone();
    let header: abi::Plan = plain::read(&bytes, 0).expect("it is there");
    let steps = (0..header.attributes.count).find(|i| {
        let place = element!(&bytes, attributes[*i]: Attribute.kind);
        bytes[place] == abi::ATTR_DTYPE as u8
    });
    let place = element!(&bytes, attributes[steps.expect("that of core.cast")]: Attribute.kind);
    set32(&mut bytes, place, abi::ATTR_PROGRAM);
    assert!(refused(&bytes).message.contains("a step of a program has a program"));
}

#[test]
fn a_call_is_no_plan_and_a_plan_no_call() {
    let failure = PlanView::read_call(&encoded()).expect_err("it is a plan");
    assert!(failure.message.contains("not a single call"), "{failure}");
    let mut bytes = encoded_call();
    let place = element!(&bytes, operands[0]: Operand.buffer);
    set32(&mut bytes, place, 0);
    assert!(refused(&bytes).message.contains("an operand of a call names a buffer"));
    let mut bytes = encoded_call();
    set32(&mut bytes, header!(kind), abi::PLAN_WHOLE);
    assert!(refused(&bytes).message.contains("names no buffer"));
    let mut bytes = encoded_call();
    set32(&mut bytes, header!(dispatches.count), 0);
    let failure = PlanView::read_call(&bytes).expect_err("it is empty");
    assert_eq!(failure.code, abi::STATUS_INVALID_PLAN);
}

/// Ranges that overlap are accepted, but not if they expand a small plan to a large one.
#[test]
#[cfg_attr(miri, ignore = "a thousand dispatches take minutes to be interpreted")]
fn ranges_within_ranges_end() {
    let mut plan_of_many = sample();
    plan_of_many.dispatches = vec![plan_of_many.dispatches[0].clone(); 1000];
    plan_of_many.segments.truncate(1);
    let mut bytes = plan(&plan_of_many).expect("small").to_vec();
    PlanView::read(&bytes).expect("a plan");
    for i in 0..1000 {
        let place = element!(&bytes, dispatches[i]: Dispatch.inputs);
        set32(&mut bytes, place, 0);
        set32(&mut bytes, place + 4, 3000);
    }
    assert!(refused(&bytes).message.contains("the same elements repeatedly"));
}

#[test]
fn every_word_may_be_anything() {
    for whole in [encoded(), encoded_call()] {
        for place in (0..whole.len() - 3).step_by(4 * STEP) {
            for value in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX] {
                let mut bytes = whole.clone();
                set32(&mut bytes, place, value);
                read_damaged(&bytes);
            }
        }
    }
}

#[test]
fn changes_at_random_are_contained() {
    let mut accepted = 0;
    let seeds = if cfg!(miri) { 10 } else { 4000 };
    for whole in [encoded(), encoded_call()] {
        for seed in 0..seeds {
            let mut rng = SplitMix64::new(seed);
            let mut bytes = whole.clone();
            for _ in 0..=rng.below(3) {
                let place = rng.below(bytes.len());
                bytes[place] ^= 1 << rng.below(8);
            }
            accepted += usize::from(read_damaged(&bytes));
        }
    }
    assert!(
        accepted as u64 * 8 > seeds,
        "most of a plan are names and numbers: {accepted}"
    );
}

/// Returns `true` if a plan can be read; otherwise checks the code of the failure.
fn read_damaged(bytes: &[u8]) -> bool {
    let _ = PlanView::read_call(bytes);
    match PlanView::read(bytes) {
        Ok(plan) => {
            assert_sound(&plan);
            true
        }
        Err(failure) => {
            assert_eq!(failure.code, abi::STATUS_INVALID_PLAN, "{failure}");
            false
        }
    }
}
