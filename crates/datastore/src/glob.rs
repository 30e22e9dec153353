//! Glob patterns as Redis has them: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a character that is meant itself.

/// True if all of `text` matches `pattern`. Takes at most `pattern.len() * text.len()` steps.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last `*`, and the text up to which it stands for now. Earlier ones need no second look.
    let mut star: Option<(usize, usize)> = None;
    loop {
        match step(&pattern[p..], text.get(t).copied()) {
            Step::End => return true,
            Step::Star => {
                star = Some((p + 1, t));
                p += 1;
            }
            Step::One(len) => (p, t) = (p + len, t + 1),
            Step::Mismatch => match star {
                Some((after, until)) if until < text.len() => {
                    star = Some((after, until + 1));
                    (p, t) = (after, until + 1);
                }
                _ => return false,
            },
        }
    }
}

enum Step {
    /// Both are at their end.
    End,
    Star,
    /// An element of this many bytes matches one byte.
    One(usize),
    Mismatch,
}

fn step(pattern: &[u8], next: Option<u8>) -> Step {
    let (matched, len) = match (pattern, next) {
        ([], None) => return Step::End,
        ([b'*', ..], _) => return Step::Star,
        ([], Some(_)) | (_, None) => return Step::Mismatch,
        ([b'?', ..], Some(_)) => (true, 1),
        ([b'[', class @ ..], Some(byte)) => in_class(class, byte),
        ([b'\\', meant, ..], Some(byte)) => (*meant == byte, 2),
        ([meant, ..], Some(byte)) => (*meant == byte, 1),
    };
    if matched { Step::One(len) } else { Step::Mismatch }
}

/// The answer of a class, and its length with the bracket before it. One without an end reaches to the end.
fn in_class(class: &[u8], byte: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            [] => return (found != negated, at + 1),
            [b']', ..] => return (found != negated, at + 2),
            [b'\\', meant, ..] => {
                found |= *meant == byte;
                at += 2;
            }
            [low, b'-', high, ..] if *high != b']' => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                at += 3;
            }
            [meant, ..] => {
                found |= *meant == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        let cases = [
            ("*", "", true),
            ("", "a", false),
            ("user:*", "user:1", true),
            ("user:*", "use", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*ab", "aab", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("a\\", "a\\", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    /// A pattern of many stars takes no exponential time.
    #[test]
    fn stars_are_not_tried_against_each_other() {
        assert!(!matches(&b"a*".repeat(5000), &[&[b'a'; 4000][..], b"b"].concat()));
    }
}
