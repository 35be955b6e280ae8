//! Compares output shown on pages with actual output.

use anyhow::{Result, ensure};

use super::Block;

/// Matches anything within a line; alone on a line, any lines.
const ANY: &str = "...";

/// Checks that a console's output matches `printed`.
pub fn compare(block: &Block, printed: &str) -> Result<()> {
    let numbers_vary = block.info.contains("numbers vary: ");
    let normal = |line: &str| {
        if numbers_vary {
            without_numbers(line)
        } else {
            line.to_owned()
        }
    };
    let expected: Vec<String> = block.parts().1.into_iter().map(normal).collect();
    let lines: Vec<String> = printed.lines().map(|line| normal(line.trim_end())).collect();
    ensure!(
        matches(&expected, &lines),
        "the page's output differs from:\n{printed}"
    );
    Ok(())
}

/// Replaces each number by 0.
fn without_numbers(line: &str) -> String {
    let mut text = String::new();
    for letter in line.chars() {
        let is_number = text.ends_with('0');
        match letter {
            '0'..='9' if is_number => {}
            '0'..='9' => text.push('0'),
            letter => text.push(letter),
        }
    }
    text.replace("0.0", "0")
}

fn matches(expected: &[String], lines: &[String]) -> bool {
    match expected {
        [] => lines.is_empty(),
        [any, rest @ ..] if any == ANY => (0..=lines.len()).any(|skipped| matches(rest, &lines[skipped..])),
        [first, rest @ ..] => lines
            .split_first()
            .is_some_and(|(line, lines)| line_matches(first, line) && matches(rest, lines)),
    }
}

fn line_matches(expected: &str, line: &str) -> bool {
    let Some((start, rest)) = expected.split_once(ANY) else {
        return expected == line;
    };
    let Some(line) = line.strip_prefix(start) else {
        return false;
    };
    let mut ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    ends.any(|at| line_matches(rest, &line[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_compared_but_for_what_varies() {
        let page = "$ run \\\n  --fast\none of 12 ms\n...\ndone in ... s, 3 ranks\n";
        let good = "one of 12 ms\nmore\nand more\ndone in 1.5 s, 3 ranks\n";
        let block = Block::new("console", page);
        let (commands, shown) = block.parts();
        assert_eq!(commands, "run \\\n  --fast\n");
        assert_eq!(shown, ["one of 12 ms", "...", "done in ... s, 3 ranks"]);
        compare(&block, good).expect("the same");
        for bad in [
            "one of 13 ms\ndone in 1.5 s, 3 ranks\n",
            "one of 12 ms\ndone in 1.5 s, 4 ranks\n",
            "one of 12 ms\ndone in 1.5 s, 3 ranks\nwarning\n",
            "",
        ] {
            compare(&block, bad).expect_err(bad);
        }
        let varies = Block::new("console numbers vary: of speed", page);
        compare(&varies, &good.replace("12", "7.25")).expect("numbers vary");
        compare(&varies, &good.replace("ranks", "nodes")).expect_err("words do not");
    }
}
