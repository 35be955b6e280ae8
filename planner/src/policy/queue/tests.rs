use super::*;

fn order(priority: i32, second: i64, job: &str) -> Order {
    Order {
        priority: Reverse(priority),
        created: Some(crate::fixtures::at(second)),
        job: job.into(),
    }
}

#[test]
fn jobs_come_by_priority_then_age_then_name() {
    let expected = [
        order(10, 9, "a/urgent"),
        order(0, 1, "a/old"),
        order(0, 2, "a/young"),
        order(0, 2, "b/young"),
        order(-5, 0, "a/low"),
    ];
    assert!(expected.is_sorted_by(|before, after| before < after));
}
