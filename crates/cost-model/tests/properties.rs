//! Limits of the model that hold for all requirements and prices.

use cost_model::growth::{Period, purchases};
use cost_model::scaling::map;
use cost_model::{Model, Price, Requirement, Rounding, Server};
use proptest::prelude::*;

fn model() -> impl Strategy<Value = Model> {
    let server = (1.0..1e5, 1.0..1e7, 1.0..1e6, 0.05..1.0);
    let server = server.prop_map(|(flash_gb, flash_iops, qps_direct, kept)| Server {
        flash_gb,
        flash_iops,
        qps_direct,
        qps_remote: qps_direct * kept,
    });
    let price = (1.0..1e5, 1.0..1e5, 0.0..1e4);
    let price = price.prop_map(|(flash, compute, tax)| Price { flash, compute, tax });
    let rounding = prop_oneof![Just(Rounding::Exact), Just(Rounding::Whole)];
    (server, price, rounding).prop_map(|(server, price, rounding)| Model {
        server,
        price,
        rounding,
    })
}

fn requirement() -> impl Strategy<Value = Requirement> {
    (0.0..1e7, 0.0..1e8, 0.0..1e9).prop_map(|(capacity_gb, iops, qps)| Requirement {
        capacity_gb,
        iops,
        qps,
    })
}

proptest! {
    /// A fleet covers each requirement, and never by a whole server too many.
    #[test]
    fn fleets_cover_what_is_required(model in model(), need in requirement()) {
        let fleet = model.fleet(&need);
        let slack = if model.rounding == Rounding::Whole { 1.0 } else { 1e-6 };
        let covers = |servers: f64, each: f64, wanted: f64| servers * each >= wanted * (1.0 - 1e-9);
        prop_assert!(covers(fleet.direct, model.server.qps_direct, need.qps));
        prop_assert!(covers(fleet.direct, model.server.flash_gb, need.capacity_gb));
        prop_assert!(covers(fleet.flash, model.server.flash_gb, need.capacity_gb));
        prop_assert!(covers(fleet.flash, model.server.flash_iops, need.iops));
        prop_assert!(covers(fleet.datastore, model.server.qps_remote, need.qps));
        let least = (need.capacity_gb / model.server.flash_gb)
            .max(need.iops / model.server.flash_iops);
        prop_assert!(fleet.flash <= least + slack + least * 1e-9);
    }

    /// More of anything never costs less.
    #[test]
    fn cost_grows_with_the_requirement(model in model(), need in requirement(), by in 1.0..10.0) {
        let more = Requirement { qps: need.qps * by, iops: need.iops * by, ..need };
        let (one, two) = (model.compare(&need), model.compare(&more));
        prop_assert!(two.direct >= one.direct - 1e-6);
        prop_assert!(two.disaggregated >= one.disaggregated - 1e-6);
    }

    /// Without tax and loss disaggregation never costs more; with them the excess is theirs.
    #[test]
    fn disaggregation_costs_at_most_its_tax_and_its_loss(model in model(), need in requirement()) {
        let model = Model { rounding: Rounding::Exact, ..model };
        let compared = model.compare(&need);
        let tax = compared.fleet.flash * model.price.tax;
        let local = need.qps / model.server.qps_direct;
        let loss = (compared.fleet.datastore - local) * model.price.compute;
        prop_assert!(compared.disaggregated <= (compared.direct + tax + loss) * (1.0 + 1e-9));
    }

    /// No saving reaches the price of what is saved: at most the larger of Flash and compute.
    #[test]
    fn savings_stay_below_the_larger_part(model in model(), need in requirement()) {
        let compared = model.compare(&need);
        let Price { flash, compute, .. } = model.price;
        prop_assert!(compared.saving() <= flash.max(compute) / (flash + compute) + 1e-9);
    }

    /// Purchases over time end with a fleet for the largest of each requirement.
    #[test]
    fn growth_ends_with_the_largest_fleet(
        model in model(),
        needs in proptest::collection::vec(requirement(), 1..6),
    ) {
        let periods: Vec<Period> = needs.iter().enumerate().map(|(at, need)| Period {
            month: at as f64,
            capacity_gb: need.capacity_gb,
            iops: need.iops,
            qps: need.qps,
            flash_price: 1.0,
            compute_price: 1.0,
        }).collect();
        let steps = purchases(&model, &periods);
        let last = steps.last().expect("a period").so_far;
        let largest = needs.iter().map(|need| model.fleet(need)).reduce(|a, b| a.max(b));
        prop_assert_eq!(Some(last.fleet), largest);
        let whole = model.price_of(&last.fleet);
        prop_assert!((last.direct - whole.direct).abs() <= whole.direct * 1e-9 + 1e-6);
        prop_assert!((last.disaggregated - whole.disaggregated).abs() <= whole.disaggregated * 1e-9 + 1e-6);
    }

    /// The map's cells are the model's own answers.
    #[test]
    fn the_map_is_the_model_at_each_cell(model in model(), need in requirement()) {
        let factors = [1.0, 3.0];
        let map = map(&model, &need, &factors);
        let scaled = Requirement { qps: need.qps * 3.0, ..need };
        prop_assert_eq!(map.savings[1][0], model.compare(&scaled).saving());
    }
}
