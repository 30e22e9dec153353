use sim::Rng;

use super::*;

/// Two tenants have two volumes each, two volumes have no tenant.
fn tenant_of(volume: Uuid) -> Option<Rc<str>> {
    ["a", "b"].get((volume.as_u128() % 3) as usize).map(|name| (*name).into())
}

/// The expected result of `may_add`, from a count of all that were let in.
fn may_add(all: &[Uuid], volume: Uuid, max: usize) -> bool {
    let count = |is: &dyn Fn(Uuid) -> bool| all.iter().filter(|one| is(**one)).count();
    let (own, left) = (count(&|one| one == volume), max.saturating_sub(all.len()));
    let Some(tenant) = tenant_of(volume) else { return own < OF_CONTROLLER || own < left };
    let of_tenant = count(&|one| tenant_of(one).as_ref() == Some(&tenant));
    (of_tenant < OF_CONTROLLER || of_tenant < left)
        && (own < OF_CONTROLLER || own + of_tenant < left)
}

/// GUEST-1 to GUEST-3. Method: hundreds are let in and end, by chance, in phases in which more do the one or the other; now and
/// then it is asked of a volume, about as many places as make the difference. All answers are those of a plain count.
#[test]
fn answers_are_those_of_a_plain_count() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let (mut guests, mut all) = (Guests::default(), Vec::new());
        let (mut yes, mut no) = (0, 0);
        for step in 0..4_000 {
            let is_filling = step / 1_000 % 2 == 0;
            if all.is_empty() || (rng.below(10) < 8) == is_filling {
                let volume = Uuid::from_u128(rng.below(6).into());
                guests.add(volume, tenant_of(volume).as_deref());
                all.push(volume);
            } else {
                let ends = rng.below(all.len() as u64) as usize;
                guests.remove(all.swap_remove(ends));
            }
            assert_eq!(guests.count(), all.len());
            // Several volumes may be new since.
            if rng.below(8) == 0 {
                let volume = Uuid::from_u128(rng.below(7).into());
                let max = all.len() + rng.below(400) as usize;
                let answer = guests.may_add(volume, tenant_of(volume).as_deref(), max);
                assert_eq!(answer, may_add(&all, volume, max), "seed {seed}, step {step}");
                *(if answer { &mut yes } else { &mut no }) += 1;
            }
        }
        assert!(yes > 50 && no > 50, "seed {seed}: {yes} and {no}");
        all.drain(..).for_each(|volume| guests.remove(volume));
        assert!(guests.is_empty());
    }
}

/// Volumes come and go without a question about them.
#[test]
fn nothing_is_kept_of_a_volume_that_no_host_has_open() {
    let mut guests = Guests::default();
    for number in 0..100 {
        let volume = Uuid::from_u128(number);
        guests.add(volume, tenant_of(volume).as_deref());
        guests.remove(volume);
        assert!(guests.is_empty());
    }
}
