//! Page of `meganeura evaluate --html`: one file without scripts and external references.

use std::fmt::Write;

use meganeura::nn::trainer::{ClassificationReport, Confusion};
use meganeura_bench::html::{STYLE, escaped};

/// Maximum number of classes for which the confusion matrix is drawn.
const MAX_MATRIX: usize = 40;
/// Maximum number of listed confusions if there are more classes.
const MAX_LISTED: usize = 40;

/// Returns the page: totals, the quality for each class, and the confusions.
pub(crate) fn evaluation_page(title: &str, loss: f64, report: &ClassificationReport) -> String {
    let title = escaped(title);
    let mut body = String::new();
    // Writing to a string cannot fail.
    let _ = write_body(&mut body, loss, report);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}{}</style>\n</head>\n<body>\n<header><h1>{title}</h1></header>\n<main>\n{body}</main>\n\
         </body>\n</html>\n",
        include_str!("evaluation.css")
    )
}

fn write_body(page: &mut String, loss: f64, report: &ClassificationReport) -> std::fmt::Result {
    let mean = &report.macro_average;
    let tiles = [
        (
            format!("{:.2}\u{a0}%", 100.0 * report.accuracy()),
            format!("accuracy: {} of {}", report.correct, report.examples),
        ),
        (format!("{loss:.4}"), "loss".to_owned()),
        (format!("{:.4}", mean.f1), "F1, macro average".to_owned()),
        (report.classes.len().to_string(), "classes".to_owned()),
    ];
    let tiles: String = tiles
        .iter()
        .map(|(value, what)| format!("<div><b>{value}</b><span>{what}</span></div>"))
        .collect();
    writeln!(page, "<div id=\"tiles\">{tiles}</div>")?;
    write_classes(page, report)?;
    if report.classes.len() <= MAX_MATRIX {
        write_matrix(page, report)
    } else {
        write_confusions(page, report)
    }
}

fn write_classes(page: &mut String, report: &ClassificationReport) -> std::fmt::Result {
    let number = |text: String| format!("<td class=\"number\">{text}</td>");
    let ratio = |value: f64| {
        number(format!(
            "{value:.4}<span class=\"share\" style=\"--share:{value:.3}\"></span>"
        ))
    };
    let heads = ["precision", "recall", "F1", "examples", "predicted"];
    let heads: String = heads
        .iter()
        .map(|head| format!("<th class=\"number\">{head}</th>"))
        .collect();
    writeln!(
        page,
        "<h2>Classes</h2>\n<p class=\"hint\">Precision: share of the class among the examples for which it was predicted. \
         Recall: share of its examples for which it was predicted. F1: harmonic mean of both.</p>\n\
         <div class=\"scroll\"><table class=\"classes\">\n<tr><th>class</th>{heads}</tr>"
    )?;
    for class in &report.classes {
        let ratios = [class.precision, class.recall, class.f1].map(ratio).concat();
        let counts = [class.examples, class.predicted]
            .map(|n| number(n.to_string()))
            .concat();
        writeln!(page, "<tr><td>{}</td>{ratios}{counts}</tr>", escaped(&class.name))?;
    }
    let mean = &report.macro_average;
    let ratios = [mean.precision, mean.recall, mean.f1].map(ratio).concat();
    let counts = [report.examples, report.examples]
        .map(|n| number(n.to_string()))
        .concat();
    writeln!(
        page,
        "<tr class=\"mean\"><td>macro average</td>{ratios}{counts}</tr>\n</table></div>"
    )
}

fn write_matrix(page: &mut String, report: &ClassificationReport) -> std::fmt::Result {
    let heads: String = report
        .classes
        .iter()
        .map(|class| format!("<th><span>{}</span></th>", escaped(&class.name)))
        .collect();
    writeln!(
        page,
        "<h2>Confusion matrix</h2>\n<p class=\"hint\">Rows: the classes of the examples; columns: the predicted classes. \
         The colour is the share of the row.</p>\n\
         <div class=\"scroll\"><table class=\"matrix\">\n<thead><tr><th></th>{heads}</tr></thead>\n<tbody>"
    )?;
    for (id, class) in report.classes.iter().enumerate() {
        let cells: String = (0..report.classes.len())
            .map(|predicted| {
                let count = report.count(id, predicted);
                let share = count as f64 / class.examples.max(1) as f64;
                let kind = if id == predicted { "hit" } else { "miss" };
                let tip = format!(
                    "{count} of {} examples of {}: {}",
                    class.examples, class.name, report.classes[predicted].name
                );
                let tip = escaped(&tip).replace('"', "&quot;");
                format!("<td class=\"{kind}\" style=\"--share:{share:.3}\" title=\"{tip}\">{count}</td>")
            })
            .collect();
        writeln!(page, "<tr><th>{}</th>{cells}</tr>", escaped(&class.name))?;
    }
    writeln!(page, "</tbody></table></div>")
}

/// Writes the most frequent confusions, if a matrix would be too large.
fn write_confusions(page: &mut String, report: &ClassificationReport) -> std::fmt::Result {
    let mut wrong: Vec<&Confusion> = report.confusion.iter().filter(|c| c.class != c.predicted).collect();
    wrong.sort_by_key(|c| std::cmp::Reverse(c.count));
    writeln!(
        page,
        "<h2>Most frequent confusions</h2>\n<div class=\"scroll\"><table class=\"classes\">\n\
         <tr><th>class</th><th>predicted</th><th class=\"number\">examples</th><th class=\"number\">share of the class</th></tr>"
    )?;
    for c in wrong.iter().take(MAX_LISTED) {
        let [class, predicted] = [c.class, c.predicted].map(|id| &report.classes[id]);
        writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{:.1}\u{a0}%</td></tr>",
            escaped(&class.name),
            escaped(&predicted.name),
            c.count,
            100.0 * c.count as f64 / class.examples.max(1) as f64
        )?;
    }
    writeln!(page, "</table></div>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(classes: usize) -> ClassificationReport {
        let names: Vec<String> = (0..classes).map(|i| format!("<{i}>")).collect();
        ClassificationReport::of(&names, &[0, 0, 1, 1, 2], &[0, 1, 1, 1, 0])
    }

    #[test]
    fn the_matrix_has_a_cell_for_each_pair() {
        let page = evaluation_page("m & \"x\"", 0.5, &report(3));
        assert!(page.contains("<title>m &amp; \"x\"</title>") && page.contains("60.00\u{a0}%"));
        assert_eq!(page.matches("<td class=\"hit\"").count(), 3);
        assert_eq!(page.matches("<td class=\"miss\"").count(), 6);
        assert!(page.contains("1 of 2 examples of &lt;0&gt;: &lt;1&gt;"), "{page}");
        assert!(!page.contains("<0>"));
    }

    #[test]
    fn many_classes_have_a_list_instead() {
        let page = evaluation_page("m", 0.5, &report(MAX_MATRIX + 1));
        assert!(!page.contains("class=\"matrix\""));
        assert!(page.contains(
            "<td>&lt;2&gt;</td><td>&lt;0&gt;</td><td class=\"number\">1</td><td class=\"number\">100.0\u{a0}%</td>"
        ));
    }
}
