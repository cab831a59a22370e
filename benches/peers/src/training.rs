//! Comparison of training steps of small classifiers, with Adam.

use candle_core::{Device as CandleDevice, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use meganeura::nn::layers::{Conv2dConfig, LinearConfig};
use meganeura::nn::models::{FEATURES, LABELS, MlpConfig, classifier};
use meganeura::ops::Pool2dOptions;
use meganeura::{Adam, Graph, Mode, Session};
use serde_json::json;

use crate::comparison::{Comparison, Peer, Result, timed};
use crate::problem::{Handout, Operand};
#[cfg(feature = "burn")]
use crate::with_burn;
use crate::{Setup, python};

/// Learning rate.
pub(crate) const RATE: f32 = 1e-4;
/// Number of steps whose losses are compared before times are measured. The second loss depends on the updates of all
/// parameters.
pub(crate) const STEPS: usize = 3;
/// Maximum difference of losses, and of the change of the compared parameter (in units of the learning rate), relative
/// to the largest number.
pub(crate) const SAME: f32 = 1e-3;

const CLASSES: usize = 10;

/// Network of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// 784-128-10 with ReLU.
    Mlp,
    /// Images of 28x28: two 3x3 convolutions to 32 and 64 channels without padding, max pooling by 2, layers of 128 and 10; the
    /// network of PyTorch's MNIST example without dropout.
    Cnn,
}

impl Network {
    fn title(self, batch: usize) -> String {
        match self {
            Network::Mlp => format!("MLP 784-128-10, training step of {batch}, Adam"),
            Network::Cnn => format!("CNN for 28x28 images with 32 and 64 channels, training step of {batch}, Adam"),
        }
    }

    fn image(self) -> &'static [usize] {
        match self {
            Network::Mlp => &[784],
            Network::Cnn => &[1, 28, 28],
        }
    }

    fn graph(self, batch: usize) -> Graph {
        classifier(batch, self.image(), |g, x| match self {
            Network::Mlp => MlpConfig::new(784, CLASSES)
                .hidden(vec![128])
                .dropout(0.0)
                .build(g, "")
                .forward(g, x),
            Network::Cnn => {
                let mut y = x;
                for (name, inputs, outputs) in [("conv1", 1, 32), ("conv2", 32, 64)] {
                    let conv = Conv2dConfig::new(inputs, outputs, [3, 3]).build(g, name);
                    y = conv.forward(g, y);
                    y = g.relu(y);
                }
                y = g.max_pool2d(y, Pool2dOptions::square(2));
                y = g.flatten(y);
                y = LinearConfig::new(64 * 12 * 12, 128).build(g, "fc1").forward(g, y);
                y = g.relu(y);
                LinearConfig::new(128, CLASSES).build(g, "fc2").forward(g, y)
            }
        })
    }
}

/// Sets the parameters of a session; if there are none yet, creates random numbers of a size that keeps results near 1.
pub(crate) fn set_parameters(session: &mut Session, operands: &mut Vec<Operand>) -> Result<()> {
    if operands.is_empty() {
        for (i, view) in session.plan().parameters().into_iter().enumerate() {
            let shape = view.ty.shape.to_vec();
            let scale = match shape[..] {
                [_] => 0.1,
                // `[inputs, outputs]`, or `[outputs, inputs, height, width]`.
                [inputs, _] => (3.0 / inputs as f32).sqrt(),
                _ => (3.0 / shape[1..].iter().product::<usize>() as f32).sqrt(),
            };
            operands.push(Operand::random(&view.name, &shape, scale, i + 1));
        }
    }
    for operand in operands {
        session.try_set_parameter(&operand.name, &operand.data)?;
    }
    Ok(())
}

/// Network that a framework trains.
pub(crate) trait Trainer {
    /// Loss of a step that the device may still be computing.
    type Loss;

    /// Runs a step, and returns the loss before its update.
    fn step(&mut self) -> Result<Self::Loss>;

    fn read(&mut self, loss: Self::Loss) -> Result<f32>;

    /// Returns the parameter whose change is compared.
    fn watched(&mut self) -> Result<Vec<f32>>;
}

/// Training steps as a workload. The result contains the losses of the first steps, and the change of one parameter in
/// units of the learning rate.
pub(crate) struct Training<T>(pub(crate) T);

impl<T: Trainer> Peer for Training<T> {
    fn result(&mut self) -> Result<Vec<f32>> {
        let before = self.0.watched()?;
        let mut result = Vec::new();
        for _ in 0..STEPS {
            let loss = self.0.step()?;
            result.push(self.0.read(loss)?);
        }
        let after = self.0.watched()?;
        result.extend(before.iter().zip(after).map(|(before, after)| (after - before) / RATE));
        Ok(result)
    }

    fn time(&mut self, times: u32) -> Result<f64> {
        timed(times, || self.0.step())
    }
}

/// Training session, and the name of the parameter whose change is compared.
pub(crate) struct ComparedSession(pub(crate) Session, pub(crate) &'static str);

impl Trainer for ComparedSession {
    type Loss = ();

    fn step(&mut self) -> Result<()> {
        self.0.try_step()?;
        self.0.try_wait()?;
        Ok(())
    }

    fn read(&mut self, (): ()) -> Result<f32> {
        Ok(self.0.try_read_loss()?)
    }

    fn watched(&mut self) -> Result<Vec<f32>> {
        Ok(self.0.try_read_parameter(self.1)?)
    }
}

/// Network and optimizer in candle.
struct Candle {
    network: Network,
    x: Tensor,
    labels: Tensor,
    parameters: Vec<(String, Var)>,
    optimizer: AdamW,
}

impl Candle {
    fn new(network: Network, operands: &[Operand], labels: &[u32]) -> Result<Self> {
        let device = &CandleDevice::Cpu;
        let mut x = None;
        let mut parameters = Vec::new();
        for o in operands {
            let tensor = Tensor::from_vec(o.data.clone(), o.shape.clone(), device)?;
            match o.name.as_str() {
                FEATURES => x = Some(tensor),
                name => parameters.push((name.to_owned(), Var::from_tensor(&tensor)?)),
            }
        }
        let settings = ParamsAdamW {
            lr: f64::from(RATE),
            weight_decay: 0.0,
            ..ParamsAdamW::default()
        };
        let vars = parameters.iter().map(|(_, var)| var.clone()).collect();
        Ok(Candle {
            network,
            x: x.ok_or("there is no x")?,
            labels: Tensor::new(labels, device)?,
            parameters,
            optimizer: AdamW::new(vars, settings)?,
        })
    }

    fn parameter(&self, name: &str) -> Result<&Tensor> {
        let found = self.parameters.iter().find(|(n, _)| n == name);
        Ok(found.ok_or_else(|| format!("there is no {name}"))?.1.as_tensor())
    }

    fn linear(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let y = x.matmul(self.parameter(&format!("{name}.weight"))?)?;
        Ok(y.broadcast_add(self.parameter(&format!("{name}.bias"))?)?)
    }

    fn conv(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let y = x.conv2d(self.parameter(&format!("{name}.weight"))?, 0, 1, 1, 1)?;
        let bias = self.parameter(&format!("{name}.bias"))?.reshape((1, (), 1, 1))?;
        Ok(y.broadcast_add(&bias)?)
    }
}

impl Trainer for Candle {
    type Loss = Tensor;

    fn step(&mut self) -> Result<Tensor> {
        let mut y = self.x.clone();
        if self.network == Network::Cnn {
            y = self.conv(&self.conv(&y, "conv1")?.relu()?, "conv2")?.relu()?;
            y = y.max_pool2d(2)?.flatten_from(1)?;
        }
        let y = self.linear(&self.linear(&y, "fc1")?.relu()?, "fc2")?;
        let loss = candle_nn::loss::cross_entropy(&y, &self.labels)?;
        self.optimizer.backward_step(&loss)?;
        Ok(loss)
    }

    fn read(&mut self, loss: Tensor) -> Result<f32> {
        Ok(loss.to_scalar()?)
    }

    fn watched(&mut self) -> Result<Vec<f32>> {
        Ok(self.parameter(WATCHED)?.to_vec1()?)
    }
}

/// Parameter whose change is compared. It has few numbers, and none of their gradients is so small that Adam would
/// amplify noise.
pub(crate) const WATCHED: &str = "fc2.bias";

/// Returns all candidates for the training step of a network.
pub(crate) fn comparison(network: Network, batch: usize, setup: &Setup) -> Result<Comparison<'static>> {
    let mut comparison = Comparison::new(network.title(batch));
    let mut shape = vec![batch];
    shape.extend(network.image());
    let x = Operand::random(FEATURES, &shape, 1.0, 0);
    let labels: Vec<u32> = (0..batch as u32).map(|i| i * 7 % CLASSES as u32).collect();
    let mut operands = Vec::new();
    for entrant in setup.meganeura(SAME)? {
        let (name, tolerance) = (entrant.name.clone(), entrant.tolerance);
        let update = Adam::new(RATE).into();
        let mut session = entrant.build(&network.graph(batch), Mode::Training, Some(update))?;
        session.try_set_input(FEATURES, &x.data)?;
        session.try_set_input_u32(LABELS, &labels)?;
        set_parameters(&mut session, &mut operands)?;
        comparison.add(name, tolerance, Box::new(Training(ComparedSession(session, WATCHED))));
    }
    operands.push(x);
    if setup.wants("candle") {
        comparison.add(
            "candle",
            SAME,
            Box::new(Training(Candle::new(network, &operands, &labels)?)),
        );
    }
    #[cfg(feature = "burn")]
    with_burn::add(&mut comparison, setup, SAME, |device| {
        with_burn::training(network, &operands, &labels, device)
    });
    let handout = Handout {
        kind: format!("{network:?}Step"),
        operands: &operands,
        settings: json!({ "labels": labels, "rate": RATE, "steps": STEPS, "watched": WATCHED }),
        onnx: None,
    };
    python::add(&mut comparison, setup, python::OF_MODELS, SAME, &handout);
    Ok(comparison)
}
