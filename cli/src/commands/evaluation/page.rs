//! Page of `meganeura evaluate --html`: one file without scripts and external references.

use std::error::Error;
use std::fmt::Write;

use meganeura::nn::data::Dataset;
use meganeura::nn::model::{
    ClassCurves, FeatureGroup, Importance, PartialDependence, Prediction, PredictionReport, Predictor, Task,
    calibration, class_curves,
};
use meganeura::nn::trainer::{ClassificationReport, Confusion, RegressionMetrics};
use meganeura_bench::html::{STYLE, escaped};

use super::charts::{Chart, range};
use super::mean;

/// Maximum number of classes of a confusion matrix.
const MAX_MATRIX: usize = 40;
/// Maximum number of listed confusions if there are more classes.
const MAX_LISTED: usize = 40;
/// Maximum number of classes with curves of their own.
const MAX_CURVES: usize = 8;
/// Maximum number of listed columns.
const MAX_COLUMNS: usize = 100;
/// Maximum number of charts of partial dependence.
const MAX_DEPENDENCES: usize = 6;
/// Number of values in a chart of partial dependence.
const VALUES: usize = 21;
/// Maximum number of examples for partial dependence, which predicts all of them for each value.
const MAX_EXAMPLES: usize = 1000;
/// Number of bars of the histogram of residuals.
const BARS: usize = 25;

/// Contents of the page.
pub(super) struct Evaluated<'a> {
    pub(super) title: String,
    pub(super) report: &'a PredictionReport,
    pub(super) predictions: &'a [Prediction],
    /// The examples.
    pub(super) data: &'a Dataset,
    pub(super) task: &'a Task,
    /// Importance of the columns of a table.
    pub(super) importances: &'a [Importance],
    /// Names of columns with their partial dependence.
    pub(super) dependences: Vec<(String, PartialDependence)>,
}

/// Computes the partial dependence of the most important columns that are numbers.
pub(super) fn dependences(
    predictor: &mut Predictor,
    data: &Dataset,
    groups: &[FeatureGroup],
    importances: &[Importance],
) -> Result<Vec<(String, PartialDependence)>, Box<dyn Error>> {
    let some: Vec<usize> = (0..data.len().min(MAX_EXAMPLES)).collect();
    let data = data.subset(&some)?;
    let mut all = Vec::new();
    for importance in importances {
        let group = groups.iter().find(|group| group.name == importance.name);
        let Some(group) = group.filter(|group| group.features.len() == 1) else {
            continue;
        };
        if all.len() == MAX_DEPENDENCES {
            break;
        }
        let dependence = predictor.partial_dependence(&data, group.features.start, VALUES)?;
        if dependence.values.len() > 1 {
            all.push((group.name.clone(), dependence));
        }
    }
    Ok(all)
}

impl Evaluated<'_> {
    /// Returns the page: totals, details and charts of the quality, and the importance of columns.
    pub(super) fn page(&self) -> String {
        let title = escaped(&self.title);
        let mut body = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_body(&mut body);
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>\n{STYLE}{}</style>\n</head>\n<body>\n<header><h1>{title}</h1></header>\n<main>\n{body}</main>\n\
             </body>\n</html>\n",
            include_str!("page.css")
        )
    }

    fn write_body(&self, page: &mut String) -> std::fmt::Result {
        match self.report {
            PredictionReport::Classification { loss, report } => self.write_classification(page, *loss, report)?,
            PredictionReport::Regression { metrics, examples } => self.write_regression(page, metrics, *examples)?,
            _ => {}
        }
        self.write_importances(page)?;
        self.write_dependences(page)
    }

    fn write_classification(&self, page: &mut String, loss: f64, report: &ClassificationReport) -> std::fmt::Result {
        let labels = self.data.labels();
        let curves = class_curves(self.predictions, labels);
        let calibration = calibration(self.predictions, labels);
        let average = &report.macro_average;
        let mut tiles = vec![
            (
                format!("{:.2}\u{a0}%", 100.0 * report.accuracy()),
                format!("accuracy: {} of {}", report.correct, report.examples),
            ),
            (format!("{loss:.4}"), "loss".to_owned()),
            (format!("{:.4}", average.f1), "F1, macro average".to_owned()),
        ];
        if let Some(auc) = mean(curves.iter().map(|curve| curve.auc)) {
            tiles.push((format!("{auc:.4}"), "area under the ROC curve".to_owned()));
        }
        tiles.push((format!("{:.4}", calibration.error), "calibration error".to_owned()));
        write_tiles(page, &tiles)?;
        write_classes(page, report)?;
        if report.classes.len() <= MAX_MATRIX {
            write_matrix(page, report)?;
        } else {
            write_confusions(page, report)?;
        }
        writeln!(
            page,
            "<h2>Probabilities</h2>\n<p class=\"hint\">ROC and precision-recall curves compare each class with all others. \
             Calibration: of the predictions with a probability of 0.8, 80\u{a0}% should be correct.</p>\n<div id=\"charts\">"
        )?;
        page.push_str(
            &self.curve_chart(&curves, ["false positive rate", "true positive rate"], |c| {
                (&c.roc, c.auc)
            }),
        );
        page.push_str(&self.curve_chart(&curves, ["recall", "precision"], |c| {
            (&c.precision_recall, c.average_precision)
        }));
        let mut chart = Chart::of_fractions(["mean probability", "fraction of correct predictions"]);
        chart.diagonal();
        let points: Vec<[f64; 2]> = calibration.bins.iter().map(|bin| [bin.0, bin.1]).collect();
        chart.line(0, "", &points);
        chart.points(&points);
        writeln!(page, "{}</div>", chart.finish("Calibration"))
    }

    /// Returns a chart of curves of the first classes. `of` returns the points, and the number in the legend.
    fn curve_chart<'c>(
        &self,
        curves: &'c [ClassCurves],
        axes: [&str; 2],
        of: impl Fn(&'c ClassCurves) -> (&'c Vec<[f64; 2]>, f64),
    ) -> String {
        let mut chart = Chart::of_fractions(axes);
        let is_roc = axes[0] != "recall";
        if is_roc {
            chart.diagonal();
        }
        for (colour, curve) in curves.iter().take(MAX_CURVES).enumerate() {
            let (points, area) = of(curve);
            let name = self.task.classes().get(curve.class).map_or("", String::as_str);
            chart.line(colour, &format!("{name} ({area:.3})"), points);
        }
        chart.finish(if is_roc {
            "ROC curve (area)"
        } else {
            "Precision and recall (average precision)"
        })
    }

    fn write_regression(&self, page: &mut String, metrics: &RegressionMetrics, examples: usize) -> std::fmt::Result {
        let tiles = [
            (format!("{:.4}", metrics.r2), "R²".to_owned()),
            (format!("{:.4}", metrics.rmse), "RMSE".to_owned()),
            (format!("{:.4}", metrics.mae), "MAE".to_owned()),
            (examples.to_string(), "examples".to_owned()),
        ];
        write_tiles(page, &tiles)?;
        let outputs = self.data.outputs();
        let Task::Regression { targets, .. } = self.task else {
            return Ok(());
        };
        writeln!(
            page,
            "<h2>Predictions</h2>\n<p class=\"hint\">A residual is the predicted number minus the true one. Residuals that depend \
             on the prediction show what the model has not learned.</p>\n<div id=\"charts\">"
        )?;
        for (target, name) in targets.iter().enumerate() {
            let rows = self.data.targets().chunks_exact(outputs).zip(self.predictions);
            let pairs: Vec<[f64; 2]> = rows
                .filter_map(|(row, prediction)| Some([f64::from(row[target]), *prediction.values().get(target)?]))
                .collect();
            let ends = range(pairs.iter().flatten().copied());
            let mut chart = Chart::new(["true", "predicted"], ends, ends);
            chart.diagonal();
            chart.points(&pairs);
            page.push_str(&chart.finish(&format!("{name}: predicted and true")));
            let residuals: Vec<[f64; 2]> = pairs
                .iter()
                .map(|[true_, predicted]| [*predicted, predicted - true_])
                .collect();
            let [x, y] = [0, 1].map(|axis| range(residuals.iter().map(|point| point[axis])));
            let mut chart = Chart::new(["predicted", "residual"], x, y);
            chart.line(7, "", &[[x[0], 0.0], [x[1], 0.0]]);
            chart.points(&residuals);
            page.push_str(&chart.finish(&format!("{name}: residuals")));
            page.push_str(&histogram(name, residuals.iter().map(|point| point[1])));
        }
        writeln!(page, "</div>")
    }

    fn write_importances(&self, page: &mut String) -> std::fmt::Result {
        let Some(most) = self.importances.first() else {
            return Ok(());
        };
        let score = match self.report {
            PredictionReport::Regression { .. } => "R²",
            _ => "accuracy",
        };
        writeln!(
            page,
            "<h2>Importance of the columns</h2>\n<p class=\"hint\">Decrease of the {score} if the values of the column are \
             permuted, with its standard deviation. Columns that depend on each other may replace each other.</p>\n\
             <div class=\"scroll\"><table class=\"classes importances\">\n\
             <tr><th>column</th><th class=\"number\">importance</th><th class=\"number\">deviation</th></tr>"
        )?;
        for importance in self.importances.iter().take(MAX_COLUMNS) {
            let share = (importance.mean / most.mean.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
            writeln!(
                page,
                "<tr><td>{}<span class=\"share\" style=\"--share:{share:.3}\"></span></td>\
                 <td class=\"number\">{:.4}</td><td class=\"number\">{:.4}</td></tr>",
                escaped(&importance.name),
                importance.mean,
                importance.deviation
            )?;
        }
        writeln!(page, "</table></div>")
    }

    fn write_dependences(&self, page: &mut String) -> std::fmt::Result {
        if self.dependences.is_empty() {
            return Ok(());
        }
        writeln!(
            page,
            "<h2>Partial dependence</h2>\n<p class=\"hint\">Mean prediction if a column has the same value in all examples: the \
             most important columns of numbers.</p>\n<div id=\"charts\">"
        )?;
        for (name, dependence) in &self.dependences {
            let values = &dependence.values;
            let is_classifier = !self.task.classes().is_empty();
            let x = range(values.iter().copied().map(f64::from));
            let y = range(dependence.predictions.iter().flatten().copied());
            let axis = if is_classifier {
                "mean probability"
            } else {
                "mean prediction"
            };
            let mut chart = Chart::new([name, axis], x, y);
            let outputs = dependence.predictions.first().map_or(0, Vec::len);
            // The probability of the first of two classes is the rest.
            let first = usize::from(is_classifier && outputs == 2);
            for (colour, output) in (first..outputs).take(MAX_CURVES).enumerate() {
                let points = values.iter().zip(&dependence.predictions);
                let points: Vec<[f64; 2]> = points.map(|(x, row)| [f64::from(*x), row[output]]).collect();
                let name = match self.task {
                    Task::Classification { classes, .. } => &classes[output],
                    Task::Regression { targets, .. } => &targets[output],
                    _ => "",
                };
                chart.line(colour, name, &points);
            }
            page.push_str(&chart.finish(name));
        }
        writeln!(page, "</div>")
    }
}

/// Returns a histogram of residuals.
fn histogram(name: &str, residuals: impl Iterator<Item = f64> + Clone) -> String {
    let ends = range(residuals.clone());
    let width = ((ends[1] - ends[0]) / BARS as f64).max(f64::MIN_POSITIVE);
    let mut counts = [0_u32; BARS];
    for residual in residuals.filter(|x| x.is_finite()) {
        counts[(((residual - ends[0]) / width) as usize).min(BARS - 1)] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(1);
    let mut chart = Chart::new(["residual", "examples"], ends, [0.0, f64::from(most.max(1))]);
    let bars = counts.iter().zip(0u8..).map(|(count, bar)| {
        let start = ends[0] + f64::from(bar) * width;
        (start, start + width, f64::from(*count))
    });
    chart.bars(&bars.collect::<Vec<_>>());
    chart.finish(&format!("{name}: distribution of the residuals"))
}

fn write_tiles(page: &mut String, tiles: &[(String, String)]) -> std::fmt::Result {
    let tiles: String = tiles
        .iter()
        .map(|(value, what)| format!("<div><b>{value}</b><span>{what}</span></div>"))
        .collect();
    writeln!(page, "<div id=\"tiles\">{tiles}</div>")
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

    fn page(classes: usize) -> String {
        let names: Vec<String> = (0..classes).map(|i| format!("<{i}>")).collect();
        let (labels, predicted) = ([0, 0, 1, 1, 2], [0, 1, 1, 1, 0]);
        let prediction = |class: &usize| {
            let probability = |other: usize| {
                if other == *class {
                    0.6
                } else {
                    0.4 / (classes - 1) as f64
                }
            };
            Prediction::Class {
                class: *class,
                probabilities: (0..classes).map(probability).collect(),
            }
        };
        let predictions: Vec<Prediction> = predicted.iter().map(prediction).collect();
        let report = ClassificationReport::of(&names, &labels, &predicted);
        let data = Dataset::new("d", vec![0.0; 5], vec![1], labels.to_vec(), classes).expect("a data set");
        Evaluated {
            title: "m & \"x\"".into(),
            report: &PredictionReport::Classification { loss: 0.5, report },
            predictions: &predictions,
            data: &data,
            task: &Task::Classification {
                target: "t".into(),
                classes: names,
            },
            importances: &[Importance {
                name: "<column>".into(),
                mean: 0.25,
                deviation: 0.01,
            }],
            dependences: Vec::new(),
        }
        .page()
    }

    #[test]
    fn the_matrix_has_a_cell_for_each_pair() {
        let page = page(3);
        assert!(page.contains("<title>m &amp; \"x\"</title>") && page.contains("60.00\u{a0}%"));
        assert_eq!(page.matches("<td class=\"hit\"").count(), 3);
        assert_eq!(page.matches("<td class=\"miss\"").count(), 6);
        assert!(page.contains("1 of 2 examples of &lt;0&gt;: &lt;1&gt;"), "{page}");
        assert!(!page.contains("<0>") && page.contains("&lt;column&gt;"));
        // Three charts: ROC, precision and recall, calibration; a curve for each class in the first two.
        assert_eq!(
            (page.matches("<svg").count(), page.matches("<polyline").count()),
            (3, 7)
        );
        assert!(!page.contains("NaN"));
    }

    #[test]
    fn many_classes_have_a_list_instead() {
        let page = page(MAX_MATRIX + 1);
        assert!(!page.contains("class=\"matrix\""));
        assert!(page.contains(
            "<td>&lt;2&gt;</td><td>&lt;0&gt;</td><td class=\"number\">1</td><td class=\"number\">100.0\u{a0}%</td>"
        ));
    }
}
