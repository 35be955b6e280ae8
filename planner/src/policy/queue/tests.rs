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

#[test]
fn a_position_alone_is_no_news() {
    let third = "needs 2: a (3rd of 5 waiting)";
    for (next, expected) in [
        ("needs 2: a (2nd of 4 waiting)", false),
        ("needs 2: a", false),
        ("needs 4: a (3rd of 5 waiting)", true),
        ("needs 2: b", true),
    ] {
        assert_eq!(is_news(third, next), expected, "{next}");
    }
}

#[test]
fn ordinals_read_as_people_say_them() {
    assert_eq!(
        [1, 2, 3, 4, 11, 12, 13, 21, 102, 111, 1000].map(ordinal),
        [
            "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th", "1000th"
        ]
    );
}
