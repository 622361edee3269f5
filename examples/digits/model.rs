//! A multi-layer perceptron in plain loops: 64 pixels, one hidden layer with ReLU, 10 digits.
//!
//! All parameters lie in one flat `f32` slice, so that one broadcast carries the weights and one all-reduce the
//! gradients:
//!
//! ```text
//! | weights 64 × HIDDEN | bias HIDDEN | weights HIDDEN × 10 | bias 10 |
//! ```
//!
//! A layer has one row per input and then its bias, so that every inner loop walks over neighbours and is vectorised.

use super::data::{CLASSES, PIXELS};
use super::random::Random;

/// Units of the hidden layer.
pub(crate) const HIDDEN: usize = 32;
/// Length of the parameters and of their gradients.
pub(crate) const PARAMETERS: usize = FIRST + (HIDDEN + 1) * CLASSES;
/// Parameters of the first layer.
const FIRST: usize = (PIXELS + 1) * HIDDEN;

/// Initial parameters: weights uniform in ±√(6 / inputs) (He et al., Delving Deep into Rectifiers, 2015), biases 0.
pub(crate) fn init(seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut params = Vec::with_capacity(PARAMETERS);
    for (inputs, outputs) in [(PIXELS, HIDDEN), (HIDDEN, CLASSES)] {
        let limit = (6.0 / inputs as f32).sqrt();
        params.extend((0..inputs * outputs).map(|_| random.uniform(-limit, limit)));
        params.extend((0..outputs).map(|_| 0.0));
    }
    params
}

/// Ten scores for each image: `rows × 10`, row-major, not normalised.
///
/// # Panics
/// If `params` is not [`PARAMETERS`] long or `pixels` is not whole images.
pub(crate) fn forward(params: &[f32], pixels: &[f32]) -> Vec<f32> {
    let (first, second) = layers(params);
    images(pixels).iter().flat_map(|image| apply(second, &relu(apply(first, image)))).collect()
}

/// The digit with the highest score for each image.
///
/// # Panics
/// As [`forward`].
pub(crate) fn predict(params: &[f32], pixels: &[f32]) -> Vec<u8> {
    let best = |scores: &[f32]| (0..CLASSES).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or(0) as u8;
    forward(params, pixels).chunks_exact(CLASSES).map(best).collect()
}

/// Writes the gradient of the cross-entropy to `grads` and returns the loss. Both are means over the given rows, so the
/// average over equal parts of a batch is the value of the whole batch.
///
/// # Panics
/// If `params` or `grads` is not [`PARAMETERS`] long, `pixels` is not one image per label, there is none, or a label
/// is not a digit.
pub(crate) fn loss_and_gradients(params: &[f32], pixels: &[f32], labels: &[u8], grads: &mut [f32]) -> f32 {
    let images = images(pixels);
    assert_eq!(images.len(), labels.len(), "one image per label");
    assert!(!labels.is_empty(), "a mean needs rows");
    let (first, second) = layers(params);
    assert_eq!(grads.len(), PARAMETERS, "one gradient per parameter");
    grads.fill(0.0);
    let (first_grads, second_grads) = grads.split_at_mut(FIRST);
    let (first_grads, second_grads) = (first_grads.as_chunks_mut().0, second_grads.as_chunks_mut().0);

    let share = 1.0 / labels.len() as f32;
    let mut loss = 0.0;
    for (image, label) in images.iter().zip(labels) {
        let hidden = relu(apply(first, image));
        let (row_loss, error) = cross_entropy(&apply(second, &hidden), *label);
        loss += row_loss * share;
        let error = error.map(|error| error * share);
        add_gradients(second_grads, &hidden, &error);
        let mut error: [f32; HIDDEN] = back(second, &error);
        for (error, hidden) in error.iter_mut().zip(&hidden) {
            *error = if *hidden > 0.0 { *error } else { 0.0 };
        }
        add_gradients(first_grads, image, &error);
    }
    loss
}

/// One step of gradient descent with momentum: `velocity = momentum · velocity + grads`, `params -= lr · velocity`.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn sgd(params: &mut [f32], velocity: &mut [f32], grads: &[f32], lr: f32, momentum: f32) {
    assert_eq!((params.len(), velocity.len()), (grads.len(), grads.len()), "one velocity and gradient per parameter");
    for ((param, velocity), grad) in params.iter_mut().zip(velocity).zip(grads) {
        *velocity = momentum * *velocity + grad;
        *param -= lr * *velocity;
    }
}

type Layer<const OUT: usize> = [[f32; OUT]];

fn layers(params: &[f32]) -> (&Layer<HIDDEN>, &Layer<CLASSES>) {
    assert_eq!(params.len(), PARAMETERS, "the parameters of this model");
    let (first, second) = params.split_at(FIRST);
    (first.as_chunks().0, second.as_chunks().0)
}

fn images(pixels: &[f32]) -> &[[f32; PIXELS]] {
    let (images, rest) = pixels.as_chunks();
    assert!(rest.is_empty(), "{} pixels are not whole images of {PIXELS}", pixels.len());
    images
}

/// The output of a layer for `input`.
fn apply<const IN: usize, const OUT: usize>(layer: &Layer<OUT>, input: &[f32; IN]) -> [f32; OUT] {
    let mut output = layer[IN];
    for (weights, input) in layer.iter().zip(input) {
        for (output, weight) in output.iter_mut().zip(weights) {
            *output += weight * input;
        }
    }
    output
}

/// The error at a layer's input, given the error at its output.
fn back<const IN: usize, const OUT: usize>(layer: &Layer<OUT>, error: &[f32; OUT]) -> [f32; IN] {
    std::array::from_fn(|input| layer[input].iter().zip(error).map(|(weight, error)| weight * error).sum())
}

/// Adds the gradients of one row to a layer's gradients.
fn add_gradients<const IN: usize, const OUT: usize>(grads: &mut Layer<OUT>, input: &[f32; IN], error: &[f32; OUT]) {
    // The bias is the weight of an input that is always 1.
    for (grads, input) in grads.iter_mut().zip(input.iter().chain(&[1.0])) {
        for (grad, error) in grads.iter_mut().zip(error) {
            *grad += input * error;
        }
    }
}

fn relu<const N: usize>(values: [f32; N]) -> [f32; N] {
    // Unlike `max`, this propagates NaN, so that the loss shows a training that diverges.
    values.map(|value| if value < 0.0 { 0.0 } else { value })
}

/// The loss of one row and its derivative by the scores: softmax minus one-hot.
fn cross_entropy(scores: &[f32; CLASSES], label: u8) -> (f32, [f32; CLASSES]) {
    let label = usize::from(label);
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers = scores.map(|score| (score - highest).exp());
    let sum: f32 = powers.iter().sum();
    let mut error = powers.map(|power| power / sum);
    error[label] -= 1.0;
    (sum.ln() + highest - scores[label], error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random images and labels.
    fn batch(rows: usize) -> (Vec<f32>, Vec<u8>) {
        let mut random = Random::new(5);
        let pixels = (0..rows * PIXELS).map(|_| random.uniform(0.0, 1.0)).collect();
        (pixels, (0..rows).map(|row| (row * 7 % CLASSES) as u8).collect())
    }

    /// Parameters with biases that are not zero.
    fn params() -> Vec<f32> {
        let mut random = Random::new(6);
        init(1).into_iter().map(|param| param + random.uniform(-0.1, 0.1)).collect()
    }

    /// The mean loss in f64, computed from its definition.
    fn loss(params: &[f64], pixels: &[f32], labels: &[u8]) -> f64 {
        let dense = |params: &[f64], input: &[f64], outputs: usize| -> Vec<f64> {
            let weighted = |output| input.iter().enumerate().map(move |(i, x)| x * params[i * outputs + output]);
            (0..outputs).map(|output| weighted(output).sum::<f64>() + params[input.len() * outputs + output]).collect()
        };
        let rows = pixels.chunks(PIXELS).zip(labels).map(|(image, label)| {
            let image: Vec<f64> = image.iter().copied().map(f64::from).collect();
            let hidden: Vec<f64> = dense(&params[..FIRST], &image, HIDDEN).iter().map(|x| x.max(0.0)).collect();
            let scores = dense(&params[FIRST..], &hidden, CLASSES);
            scores.iter().map(|score| score.exp()).sum::<f64>().ln() - scores[usize::from(*label)]
        });
        rows.sum::<f64>() / labels.len() as f64
    }

    #[test]
    fn every_gradient_is_the_slope_of_the_loss() {
        let (pixels, labels) = batch(3);
        let params = params();
        let mut grads = vec![f32::NAN; PARAMETERS];
        let found = loss_and_gradients(&params, &pixels, &labels, &mut grads);

        let mut wide: Vec<f64> = params.iter().copied().map(f64::from).collect();
        let expected = loss(&wide, &pixels, &labels);
        assert!((f64::from(found) - expected).abs() < 1e-5, "{found} is not {expected}");
        let step = 1e-6;
        for (i, grad) in grads.iter().enumerate() {
            let param = wide[i];
            wide[i] = param + step;
            let above = loss(&wide, &pixels, &labels);
            wide[i] = param - step;
            let below = loss(&wide, &pixels, &labels);
            wide[i] = param;
            let slope = (above - below) / (2.0 * step);
            assert!((f64::from(*grad) - slope).abs() < 1e-5, "parameter {i}: {grad} is not {slope}");
        }
    }

    #[test]
    fn losses_and_gradients_of_four_parts_average_to_those_of_the_whole() {
        let (pixels, labels) = batch(64);
        let params = params();
        let mut whole = vec![0.0; PARAMETERS];
        let whole_loss = loss_and_gradients(&params, &pixels, &labels, &mut whole);

        let (mut mean, mut mean_loss) = (vec![0.0; PARAMETERS], 0.0);
        let mut part = vec![0.0; PARAMETERS];
        for (pixels, labels) in pixels.chunks(16 * PIXELS).zip(labels.chunks(16)) {
            mean_loss += loss_and_gradients(&params, pixels, labels, &mut part) / 4.0;
            mean.iter_mut().zip(&part).for_each(|(mean, part)| *mean += part / 4.0);
        }
        assert!((mean_loss - whole_loss).abs() < 1e-6, "{mean_loss} is not {whole_loss}");
        assert!(mean.iter().zip(&whole).all(|(mean, whole)| (mean - whole).abs() < 1e-6));
    }
}
