//! How many images of a step each replica takes where ranks are not alike (`training.balance: Weighted`).
//!
//! The global batch stays as it is; a replica takes as much of it as it can process in the time that the others need for
//! theirs. Every rank hears the times of all ranks with each step, so that all decide the same without another message.
//! A decision takes the medians of [`WINDOW`] steps, and changes the shares only where the slowest replica then needs
//! [`LEAST_GAIN`] less. A replica that would hold up the others with the least that it can take gets nothing; it is
//! tried again once that costs less than about [`TRIAL_COST`] of the time since.

use crate::pass_time::PassTime;

/// Steps between two changes, trials apart.
const WINDOW: usize = 50;
/// Steps that tell nothing of new shares: the one that is under way when they are decided, two until ranks have heard of the
/// first one with them, and that one, which allocates memory and begins to read other images.
const LAG: u64 = 4;
/// The slowest replica's time with the old shares over that with the new ones.
const LEAST_GAIN: f64 = 1.05;
/// Largest share of the time since a replica was measured that it may cost to measure it again.
const TRIAL_COST: f64 = 0.01;
/// What it costs to read other images from now on, in steps.
const RESTART: f64 = 1.0;
/// A step with a trial takes at most this many times as long as one without: ranks that wait must not count as stuck.
const LONGEST_TRIAL: f64 = 4.0;
/// No time is shorter, seconds.
const SHORTEST: f64 = 1e-9;
/// Halvings of an interval, after which its ends are the same number.
const HALVINGS: usize = 64;

/// What a step takes a replica, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// A micro-batch, whatever its size.
    fixed: f64,
    /// An image.
    image: f64,
}

impl Cost {
    /// By the times of two micro-batches, of which the first has more images.
    pub(super) fn of(times: [(u64, f64); 2]) -> Self {
        let time = PassTime::through(times);
        Self {
            fixed: time.fixed_seconds,
            image: time.image_seconds.max(SHORTEST),
        }
    }

    fn seconds(self, images: u64, largest: u64) -> f64 {
        self.fixed * images.div_ceil(largest) as f64 + self.image * images as f64
    }

    fn scaled(self, factor: f64) -> Self {
        Self {
            fixed: self.fixed * factor,
            image: (self.image * factor).max(SHORTEST),
        }
    }
}

/// The sizes in which images of a step come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Of a step, over all replicas.
    pub(super) total: u64,
    /// The largest micro-batch.
    pub(super) micro_batch: u64,
    /// Images that stay together; the others are multiples of it.
    pub(super) quantum: u64,
}

/// Images of a step by replica.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Shares(Vec<u64>);

impl Shares {
    /// The same for each of `replicas`, which divide `total` evenly.
    pub(super) fn even(total: u64, replicas: u32) -> Self {
        Self(vec![total / u64::from(replicas); replicas as usize])
    }

    /// Those with which the slowest replica takes the least time.
    fn fastest(costs: &[Cost], sizes: Sizes) -> Self {
        let within = |seconds: f64| -> Vec<u64> {
            costs
                .iter()
                .map(|cost| most_within(*cost, seconds, sizes))
                .collect()
        };
        let holds = |images: &[u64]| images.iter().sum::<u64>() >= sizes.total;
        let alone = costs
            .iter()
            .map(|cost| cost.seconds(sizes.total, sizes.micro_batch));
        let (mut too_short, mut enough) = (0.0, alone.fold(f64::INFINITY, f64::min));
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(too_short, enough);
            *if holds(&within(middle)) {
                &mut enough
            } else {
                &mut too_short
            } = middle;
        }
        let mut images = within(enough);
        let mut excess = images.iter().sum::<u64>() - sizes.total;
        while excess > 0 {
            let seconds = |replica: &usize| costs[*replica].seconds(images[*replica], sizes.micro_batch);
            let having = (0..images.len()).filter(|replica| images[*replica] > 0);
            let slowest = having.max_by(|one, other| seconds(one).total_cmp(&seconds(other)));
            images[slowest.expect("a replica")] -= sizes.quantum;
            excess -= sizes.quantum;
        }
        Self(images)
    }

    /// As they are, but for one `quantum` that each of `replicas` takes from whoever has the most.
    fn with_trials(&self, replicas: &[usize], quantum: u64) -> Self {
        let mut images = self.0.clone();
        for replica in replicas {
            *images.iter_mut().max().expect("a replica") -= quantum;
            images[*replica] += quantum;
        }
        Self(images)
    }

    /// What the slowest replica takes, in seconds.
    fn slowest(&self, costs: &[Cost], sizes: Sizes) -> f64 {
        let shares = self.0.iter().zip(costs);
        let times = shares.map(|(images, cost)| cost.seconds(*images, sizes.micro_batch));
        times.max_by(f64::total_cmp).unwrap_or_default()
    }

    pub(super) fn as_slice(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn images(&self, replica: u32) -> u64 {
        self.0[replica as usize]
    }

    /// Images of a step that come before those of `replica`.
    pub(super) fn before(&self, replica: u32) -> u64 {
        self.0[..replica as usize].iter().sum()
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Replicas that take nothing.
    fn idle(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).filter(|replica| self.0[*replica] == 0)
    }

    /// The fewest micro-batches of at most `largest` images that hold those of `replica`.
    pub(super) fn least_micro_batches(&self, replica: u32, largest: u64) -> u64 {
        self.images(replica).div_ceil(largest)
    }

    /// The same of the replica that has the most.
    pub(super) fn most_micro_batches(&self, largest: u64) -> u64 {
        let most = self.0.iter().max().copied().unwrap_or(0);
        most.div_ceil(largest)
    }

    /// The images of `replica` in so many micro-batches, whose sizes differ by one `quantum` at most; some are empty where it
    /// has too few.
    pub(super) fn micro_batches(&self, replica: u32, count: u64, quantum: u64) -> Vec<u64> {
        let quanta = self.images(replica) / quantum;
        let before = |index: u64| quanta * index / count * quantum;
        (0..count)
            .map(|index| before(index + 1) - before(index))
            .collect()
    }
}

/// The most images, up to those of a step, that a replica processes in so many seconds.
fn most_within(cost: Cost, seconds: f64, sizes: Sizes) -> u64 {
    let fits = |quanta: u64| cost.seconds(quanta * sizes.quantum, sizes.micro_batch) <= seconds;
    let (mut fitting, mut too_many) = (0, sizes.total / sizes.quantum + 1);
    while fitting + 1 < too_many {
        let middle = u64::midpoint(fitting, too_many);
        *if fits(middle) { &mut fitting } else { &mut too_many } = middle;
    }
    fitting * sizes.quantum
}

impl std::fmt::Display for Shares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let images: Vec<String> = self.0.iter().map(u64::to_string).collect();
        write!(f, "{}", images.join(", "))
    }
}

/// That shares have changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) before: Shares,
    /// What the slowest replica is expected to take, in seconds: with the shares before, and with the new ones.
    pub(super) seconds: [f64; 2],
}

/// Measures replicas and decides of their shares.
#[derive(Debug)]
pub(super) struct Balancer {
    sizes: Sizes,
    shares: Shares,
    /// By replica.
    costs: Vec<Cost>,
    /// The step at which each of them was measured.
    measured: Vec<u64>,
    /// The step at which the shares were decided.
    since: u64,
    /// Seconds of steps with these shares, by replica.
    window: Vec<Vec<f64>>,
    /// Replicas that were idle, and have images in order to be measured; the shares without them.
    trial: Option<(Vec<usize>, Shares)>,
}

impl Balancer {
    /// Of replicas of these costs, when training begins after `step`.
    pub(super) fn new(costs: Vec<Cost>, sizes: Sizes, step: u64) -> (Self, Option<Change>) {
        let replicas = u32::try_from(costs.len()).expect("as many as there are ranks");
        let mut balancer = Self {
            sizes,
            shares: Shares::even(sizes.total, replicas),
            measured: vec![step; costs.len()],
            costs,
            since: step,
            window: Vec::new(),
            trial: None,
        };
        let change = balancer.decide(step, LEAST_GAIN);
        (balancer, change)
    }

    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The shares without trials: those of work that has no end before a trial's.
    pub(super) fn lasting_shares(&self) -> &Shares {
        self.trial.as_ref().map_or(&self.shares, |(_, without)| without)
    }

    /// Replicas that take nothing, or only to be measured.
    pub(super) fn is_idle(&self, replica: u32) -> bool {
        self.lasting_shares().images(replica) == 0
    }

    /// Whether replicas have images in order to be measured.
    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Takes in what each replica computed in an earlier step, as all ranks have heard with `step`. Gives what changes, from
    /// the step on that is launched next.
    pub(super) fn observe(&mut self, step: u64, seconds: Vec<f64>) -> Option<Change> {
        if step <= self.since + LAG {
            return None;
        }
        self.window.push(seconds);
        // One step tells enough of those that are tried, and too little of the others.
        let (measured, least_gain) = match self.trial.take() {
            // Without a threshold: among many replicas the share of one is a small gain.
            Some((tried, _)) => (tried, 1.0),
            None if self.window.len() == WINDOW => ((0..self.costs.len()).collect(), LEAST_GAIN),
            None => return None,
        };
        for replica in measured {
            let images = self.shares.0[replica];
            if images > 0 {
                let median = median(self.window.iter().map(|times| times[replica]).collect());
                let expected = self.costs[replica].seconds(images, self.sizes.micro_batch);
                self.costs[replica] = self.costs[replica].scaled(median / expected);
                self.measured[replica] = step;
            }
        }
        self.window.clear();
        self.decide(step, least_gain)
    }

    fn decide(&mut self, step: u64, least_gain: f64) -> Option<Change> {
        let fastest = Shares::fastest(&self.costs, self.sizes);
        let now = self.shares.slowest(&self.costs, self.sizes);
        let then = fastest.slowest(&self.costs, self.sizes);
        let next = if now >= then * least_gain {
            fastest
        } else {
            self.shares.clone()
        };
        let others = next.slowest(&self.costs, self.sizes);
        let due: Vec<usize> = next
            .idle()
            .filter(|replica| self.is_due(*replica, step, others))
            .collect();
        let with_trials = next.with_trials(&due, self.sizes.quantum);
        self.trial = (!due.is_empty()).then_some((due, next));
        (with_trials != self.shares).then(|| {
            self.since = step;
            let seconds = [now, with_trials.slowest(&self.costs, self.sizes)];
            let before = std::mem::replace(&mut self.shares, with_trials);
            Change { before, seconds }
        })
    }

    /// Whether an idle replica may be measured again, where a step takes the others so many seconds.
    fn is_due(&self, replica: usize, step: u64, others: f64) -> bool {
        let alone = self.costs[replica].seconds(self.sizes.quantum, self.sizes.micro_batch);
        // From the first step with it to the one that is under way when it is over.
        let cost = (LAG + 1) as f64 * (alone - others).max(0.0) + 2.0 * RESTART * others;
        let since = step - self.measured[replica];
        since > WINDOW as u64 && alone <= LONGEST_TRIAL * others && cost <= TRIAL_COST * others * since as f64
    }
}

/// The middle one of some values; of an even number the lower one.
fn median(mut values: Vec<f64>) -> f64 {
    let middle = (values.len() - 1) / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(total: u64, quantum: u64) -> Sizes {
        Sizes {
            total,
            micro_batch: 1 << 20,
            quantum,
        }
    }

    /// Costs of replicas that an image takes so many seconds, and nothing else.
    fn costs(seconds: &[f64]) -> Vec<Cost> {
        seconds
            .iter()
            .map(|image| Cost {
                fixed: 0.0,
                image: *image,
            })
            .collect()
    }

    fn fastest(costs: &[Cost], sizes: Sizes) -> Vec<u64> {
        let shares = Shares::fastest(costs, sizes);
        assert_eq!(shares.total(), sizes.total);
        shares.0
    }

    /// Every way to give `total` images in groups of `quantum` to so many replicas.
    fn all_shares(total: u64, quantum: u64, replicas: usize) -> Vec<Vec<u64>> {
        if replicas == 1 {
            return vec![vec![total]];
        }
        let first = (0..=total / quantum).map(|quanta| quanta * quantum);
        let with = |first: u64| {
            let rest = all_shares(total - first, quantum, replicas - 1);
            rest.into_iter().map(move |rest| [vec![first], rest].concat())
        };
        first.flat_map(with).collect()
    }

    #[test]
    fn no_other_shares_are_faster() {
        for (fixed, seconds) in [
            (0.0, vec![1.0, 1.0, 1.0]),
            (0.0, vec![1.0, 2.0, 6.0]),
            (0.0, vec![0.3, 0.7, 100.0]),
            (0.0, vec![5.0, 1.1, 1.3, 1.2]),
            (2.5, vec![1.0, 1.2, 3.0]),
            (0.4, vec![1.0, 1.0, 1.1, 9.0]),
        ] {
            let costs: Vec<Cost> = seconds
                .iter()
                .map(|image| Cost { fixed, image: *image })
                .collect();
            for (total, quantum) in [(12, 1), (12, 2), (7, 1), (1, 1)] {
                let sizes = Sizes {
                    micro_batch: 4,
                    ..sizes(total, quantum)
                };
                let found = Shares(fastest(&costs, sizes)).slowest(&costs, sizes);
                let others = all_shares(total, quantum, costs.len());
                let best = others
                    .into_iter()
                    .map(|images| Shares(images).slowest(&costs, sizes));
                let best = best.min_by(f64::total_cmp).expect("some");
                assert!(
                    found <= best + 1e-9,
                    "{costs:?}, {total} in {quantum}s: {found} for {best}"
                );
            }
        }
    }

    #[test]
    fn replicas_take_images_by_their_speed_and_none_where_one_would_hold_up_all() {
        assert_eq!(fastest(&costs(&[1.0, 2.0, 6.0]), sizes(20, 1)), [12, 6, 2]);
        assert_eq!(fastest(&costs(&[1.0, 1.0]), sizes(16, 1)), [8, 8]);
        // The study's mixed cluster: three fast GPUs, one of 0.3 of their speed, one of 0.01.
        let study = costs(&[1.0, 1.0, 1.0, 1.0 / 0.3, 100.0]);
        assert_eq!(fastest(&study, sizes(80, 2))[4], 0);
        let of_many = fastest(&study, sizes(1000, 2));
        assert!(of_many[4] == 2 && of_many[3] >= 88, "{of_many:?}");
    }

    #[test]
    fn a_second_micro_batch_is_only_taken_where_it_pays() {
        // 64 images take 1 and 1.15, but 34 of them take 0.62 of that.
        let costs = [1.0, 1.15].map(|speed| Cost::of([(64, speed), (34, 0.62 * speed)]));
        let one = Sizes {
            micro_batch: 64,
            ..sizes(128, 1)
        };
        assert_eq!(fastest(&costs, one), [64, 64]);
        let four = Sizes {
            micro_batch: 16,
            ..sizes(128, 1)
        };
        assert!(fastest(&costs, four)[0] >= 64);
    }

    #[test]
    fn a_cost_is_what_two_sizes_tell_within_reason() {
        let cost = Cost::of([(16, 10.0), (2, 3.0)]);
        assert!((cost.seconds(16, 16) - 10.0).abs() < 1e-9 && (cost.seconds(2, 16) - 3.0).abs() < 1e-9);
        assert!((cost.seconds(32, 16) - 20.0).abs() < 1e-9, "two micro-batches");
        // Noise: an image does not take nothing, nor more than its part.
        for short in [10.0, 12.0, 0.0] {
            let cost = Cost::of([(16, 10.0), (2, short)]);
            assert!(
                cost.image >= 0.05 && cost.image <= 0.626 && cost.fixed >= 0.0,
                "{cost:?}"
            );
            assert!((cost.seconds(16, 16) - 10.0).abs() < 1e-9, "{cost:?}");
        }
        let cost = Cost::of([(2, 10.0), (2, 11.0)]);
        assert!((cost.image - 5.0).abs() < 1e-9 && cost.fixed.abs() < 1e-9);
    }

    #[test]
    fn a_share_is_put_through_the_model_in_micro_batches_of_like_size() {
        let micro_batches = |images, count, quantum| Shares(vec![images]).micro_batches(0, count, quantum);
        assert_eq!(micro_batches(16, 1, 1), [16]);
        assert_eq!(micro_batches(17, 2, 1), [8, 9]);
        assert_eq!(micro_batches(50, 4, 1), [12, 13, 12, 13]);
        assert_eq!(micro_batches(50, 4, 2), [12, 12, 12, 14]);
        assert_eq!(micro_batches(2, 3, 1), [0, 1, 1]);
        assert_eq!(micro_batches(0, 1, 1), [0]);
        let shares = Shares(vec![17, 64, 0]);
        assert_eq!(
            (shares.most_micro_batches(16), shares.least_micro_batches(0, 16)),
            (4, 2)
        );
        let even = Shares::even(96, 4);
        assert_eq!((even.images(3), even.before(3), even.total()), (24, 72, 96));
        assert_eq!(
            even.micro_batches(3, even.least_micro_batches(3, 8), 1),
            [8, 8, 8]
        );
        assert_eq!(even.to_string(), "24, 24, 24, 24");
    }

    /// Takes steps from `step` on, which take replicas as `costs` says, until shares change. Gives the step at which they do.
    fn until_change(balancer: &mut Balancer, step: &mut u64, costs: &[Cost]) -> Option<(u64, Change)> {
        for _ in 0..10_000 {
            *step += 1;
            let shares = balancer.shares().clone();
            let times = (0..)
                .zip(costs)
                .map(|(replica, cost)| cost.seconds(shares.images(replica), balancer.sizes.micro_batch));
            let times = times.collect();
            if let Some(change) = balancer.observe(*step, times) {
                return Some((*step, change));
            }
        }
        None
    }

    /// What the slowest replica took, and will take.
    fn in_seconds(change: &Change) -> String {
        let [was, is] = change.seconds;
        format!("{was:.0}, {is:.0}")
    }

    #[test]
    fn shares_change_only_for_a_gain_and_not_often() {
        let (mut balancer, change) = Balancer::new(costs(&[1.0, 1.04]), sizes(100, 1), 7);
        assert_eq!((change, balancer.shares().to_string()), (None, "50, 50".into()));
        let mut step = 7;
        assert_eq!(until_change(&mut balancer, &mut step, &costs(&[1.0, 1.09])), None);
        let since = step;
        let (step, change) = until_change(&mut balancer, &mut step, &costs(&[1.0, 3.0])).expect("it pays");
        assert!(
            step >= since + 25,
            "a window holds more of the new times than of the old ones"
        );
        assert_eq!(change.before.to_string(), "50, 50");
        assert_eq!(balancer.shares().to_string(), "75, 25");
        assert_eq!(in_seconds(&change), "150, 75");
        let (mut again, since) = (step, step);
        let (step, _) = until_change(&mut balancer, &mut again, &costs(&[1.0, 1.0])).expect("it pays");
        assert_eq!(step, since + LAG + WINDOW as u64);
    }

    #[test]
    fn steps_with_other_shares_and_single_slow_ones_tell_nothing() {
        let (mut balancer, _) = Balancer::new(costs(&[1.0, 3.0]), sizes(100, 1), 0);
        assert_eq!(balancer.shares().to_string(), "75, 25");
        // Times of the steps before, in which the second replica took a multiple.
        for step in 1..=LAG {
            assert_eq!(balancer.observe(step, vec![50.0, 1500.0]), None);
        }
        for step in 0..WINDOW as u64 {
            let pause = if step % 5 == 0 { 600.0 } else { 75.0 };
            assert_eq!(balancer.observe(LAG + 1 + step, vec![pause, 75.0]), None);
        }
    }

    #[test]
    fn a_replica_that_was_left_idle_is_tried_again_at_little_cost() {
        let mut seconds = costs(&[1.0, 1.0, 100.0]);
        let (mut balancer, change) = Balancer::new(seconds.clone(), sizes(126, 2), 0);
        assert!(change.is_some() && balancer.is_idle(2));
        let idle = balancer.shares().to_string();
        assert_eq!(balancer.shares().images(2), 0);
        let mut step = 0;
        let (tried, change) = until_change(&mut balancer, &mut step, &seconds).expect("a trial");
        assert_eq!(balancer.shares().images(2), 2);
        assert!(balancer.is_trying() && balancer.is_idle(2));
        assert_eq!(balancer.lasting_shares().to_string(), idle);
        assert_eq!(in_seconds(&change), "64, 200");
        let (ended, _) = until_change(&mut balancer, &mut step, &seconds).expect("its end");
        assert_eq!(balancer.shares().to_string(), idle);
        // The steps from the second after the decision on, to the one after the next decision.
        let lost = (ended - tried) as f64 * (200.0 - 64.0);
        assert!(lost <= 0.01 * 64.0 * tried as f64, "{lost} in {tried} steps");
        // It was slow for a while only.
        seconds[2].image = 1.0;
        let (again, _) = until_change(&mut balancer, &mut step, &seconds).expect("a trial");
        assert!(again - ended >= tried - WINDOW as u64);
        until_change(&mut balancer, &mut step, &seconds).expect("its end");
        assert_eq!(balancer.shares().to_string(), "42, 42, 42");
        assert!(!balancer.is_idle(2) && !balancer.is_trying());
    }

    #[test]
    fn one_of_many_gets_its_share_back_and_a_far_slower_one_is_never_tried() {
        // With a cost of each micro-batch that is half of what an even share takes.
        let recovered = Cost {
            fixed: 8.0,
            image: 0.5,
        };
        let mut all = vec![recovered; 32];
        all[31] = recovered.scaled(5.0);
        let (mut balancer, _) = Balancer::new(all.clone(), sizes(512, 1), 0);
        assert!(balancer.is_idle(31));
        all[31] = recovered;
        let mut step = 0;
        until_change(&mut balancer, &mut step, &all).expect("a trial");
        until_change(&mut balancer, &mut step, &all).expect("its end");
        assert_eq!(balancer.shares().images(31), 16);

        let (mut balancer, _) = Balancer::new(costs(&[1.0, 1000.0]), sizes(64, 1), 0);
        let mut step = 0;
        assert_eq!(
            until_change(&mut balancer, &mut step, &costs(&[1.0, 1000.0])),
            None
        );
        assert!(balancer.is_idle(1));
    }
}
