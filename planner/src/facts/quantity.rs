//! Kubernetes quantities ("250m", "16Gi", "4") as numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The quantity in thousandths of its unit, rounded up; `None` if it is invalid.
pub(crate) fn milli(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.trim();
    let digits = text
        .find(|character: char| !(character.is_ascii_digit() || matches!(character, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "Pi" => 1_125_899_906_842_624.0,
        "Ei" => 1_152_921_504_606_846_976.0,
        exponent => 10_f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let milli = number * factor * 1000.0;
    // Decimal fractions are inexact in binary: round what is close to a whole number.
    let nearest = milli.round();
    let is_whole = (milli - nearest).abs() < 1e-6;
    Some(if is_whole { nearest } else { milli.ceil() } as i64)
}

/// The quantity in whole units, rounded up, for counts of GPUs and bytes; `None` if it is invalid.
pub fn whole(quantity: &Quantity) -> Option<i64> {
    milli(quantity).map(|milli| milli.div_euclid(1000) + i64::from(milli.rem_euclid(1000) > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_quantity_is_read() {
        for (text, expected) in [
            ("4", 4000),
            ("250m", 250),
            ("0.1", 100),
            ("1k", 1_000_000),
            ("1e3", 1_000_000),
            ("2Ki", 2_048_000),
            ("16Gi", 16 * 1_073_741_824 * 1000),
            ("100u", 1),
            ("-1", -1000),
        ] {
            assert_eq!(milli(&Quantity(text.into())), Some(expected), "{text}");
        }
        for text in ["", "four", "4 GB", "1.2.3", "5e"] {
            assert_eq!(milli(&Quantity(text.into())), None, "{text}");
        }
        assert_eq!(whole(&Quantity("1500m".into())), Some(2));
        assert_eq!(whole(&Quantity("3".into())), Some(3));
    }
}
