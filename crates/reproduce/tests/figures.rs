//! Every figure has the shape that the paper found, in a hundredth of its time.

use reproduce::{FIGURES, Figure, Options, Outcome};

fn run(name: &str, time: f64) -> Outcome {
    let figure = Figure::find(name).expect("known");
    let mut last = 0.0;
    let mut told = 0;
    let mut progress = |part: f64| {
        assert!((last..=1.0).contains(&part), "progress goes forward: {last} {part}");
        last = part;
        told += 1;
    };
    let outcome = figure.run(&Options { time, seed: 7 }, &mut progress).expect("runs");
    assert!(told > 0);
    outcome
}

fn check(name: &str, time: f64) {
    let outcome = run(name, time);
    assert!(outcome.agrees(), "{:#?}", outcome.findings);
    assert!(outcome.svg.contains("</svg>"));
    assert!(!outcome.data.is_empty());
}

#[test]
fn decibel_7() {
    check("decibel-7", 0.02);
}

#[test]
fn decibel_8() {
    check("decibel-8", 0.1);
}

#[test]
fn decibel_13() {
    check("decibel-13", 0.01);
}

#[test]
fn eurosys_7_device() {
    check("eurosys-7-device", 0.1);
}

/// The other figures of the array are held to the paper beside the code, where they share what they measure.
#[test]
fn afa_10() {
    check("afa-10", 0.125);
}

#[test]
fn afa_table_2() {
    check("afa-table-2", 0.125);
}

#[test]
fn isolation() {
    check("isolation", 0.1);
}

#[test]
fn equal_options_give_equal_figures() {
    for figure in FIGURES {
        let data = || run(figure.name, 0.002).data.to_csv();
        assert_eq!(data(), data(), "{}", figure.name);
    }
}

#[test]
fn impossible_times_are_refused() {
    for figure in FIGURES {
        for time in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(figure.run(&Options { time, seed: 1 }, &mut |_| {}).is_err());
        }
    }
}
