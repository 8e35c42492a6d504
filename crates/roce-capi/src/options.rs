//! The options of `cpu_roce_set_option`: text in, builder calls out.

use roce_core::Mtu;
use roce_transport::{ConfigBuilder, ImmediateFormat, MemoryLock, OverrunPolicy, TornFrames};

use crate::error::Refusal;

/// `None`: the value is none of those that the option knows.
type Apply = fn(ConfigBuilder, &str) -> Option<ConfigBuilder>;

/// Name, values, and what it does.
const OPTIONS: &[(&str, &str, Apply)] = &[
    ("mtu", "256, 512, 1024, 2048 or 4096", |b, v| Some(b.mtu(Mtu::try_from(v.parse::<u32>().ok()?).ok()?))),
    ("rx_cpu", "the number of a CPU", |b, v| Some(b.rx_cpu(v.parse().ok()?))),
    ("tx_cpu", "the number of a CPU", |b, v| Some(b.tx_cpu(v.parse().ok()?))),
    ("rt_priority", "1 to 99", |b, v| Some(b.rt_priority(v.parse().ok()?))),
    ("inline", "a number of bytes", |b, v| Some(b.max_inline(v.parse().ok()?))),
    ("immediate", "auto, slot, hsb, hsb-2510 or ignore", |b, v| {
        let format = match v {
            "auto" => ImmediateFormat::Auto,
            "slot" => ImmediateFormat::Slot,
            "hsb" => ImmediateFormat::Hsb,
            "hsb-2510" => ImmediateFormat::Hsb2510,
            "ignore" => ImmediateFormat::Ignore,
            _ => return None,
        };
        Some(b.immediate(format))
    }),
    ("overrun", "wait, drop or fail", |b, v| {
        let policy = match v {
            "wait" => OverrunPolicy::Wait,
            "drop" => OverrunPolicy::Drop,
            "fail" => OverrunPolicy::Fail,
            _ => return None,
        };
        Some(b.overrun(policy))
    }),
    ("torn", "drop or deliver", |b, v| match v {
        "drop" => Some(b.torn_frames(TornFrames::Drop)),
        "deliver" => Some(b.torn_frames(TornFrames::Deliver)),
        _ => None,
    }),
    ("frame_packets", "a number of packets", |b, v| Some(b.frame_packets(v.parse().ok()?))),
    ("metadata", "on or off", |b, v| match v {
        "on" => Some(b.metadata(true)),
        "off" => Some(b.metadata(false)),
        _ => None,
    }),
    ("hugepages", "on or off", |b, v| match v {
        "on" => Some(b.hugepages(true)),
        "off" => Some(b.hugepages(false)),
        _ => None,
    }),
    ("mlock", "try, on or off", |b, v| {
        let lock = match v {
            "try" => MemoryLock::Try,
            "on" => MemoryLock::Require,
            "off" => MemoryLock::Off,
            _ => return None,
        };
        Some(b.memory_lock(lock))
    }),
    ("faults", "faults of a soft device, as in drop=0.02,seed=7", |b, v| Some(b.faults(v.parse().ok()?))),
];

/// The builder with the option applied.
pub(crate) fn apply(builder: ConfigBuilder, key: &str, value: &str) -> Result<ConfigBuilder, Refusal> {
    let Some((what, expected, apply)) = OPTIONS.iter().find(|(name, ..)| *name == key) else {
        let names: Vec<_> = OPTIONS.iter().map(|(name, ..)| *name).collect();
        return Err(Refusal::NoOption { key: key.to_owned(), known: names.join(", ") });
    };
    apply(builder, value).ok_or_else(|| Refusal::argument(what, format_args!("`{value}`"), expected))
}

#[cfg(test)]
mod tests {
    use roce_transport::Config;

    use super::*;

    fn try_option(key: &str, value: &str) -> Result<(), String> {
        let applied = apply(Config::builder("soft"), key, value).map_err(|e| e.to_string())?;
        applied.build().map(drop).map_err(|e| e.to_string())
    }

    #[test]
    fn the_documented_values_are_taken() {
        for (key, values) in [
            ("mtu", "256 512 1024 2048 4096"),
            ("rx_cpu", "0 1"),
            ("tx_cpu", "0 1"),
            ("rt_priority", "1 99"),
            ("inline", "0 64 256"),
            ("immediate", "auto slot hsb hsb-2510 ignore"),
            ("overrun", "wait drop fail"),
            ("torn", "drop deliver"),
            ("frame_packets", "1 40"),
            ("metadata", "off"),
            ("hugepages", "on off"),
            ("mlock", "try on off"),
            ("faults", "drop=0.5,seed=7"),
        ] {
            for value in values.split(' ') {
                assert_eq!(try_option(key, value), Ok(()), "{key}={value}");
            }
        }
    }

    #[test]
    fn others_are_refused_with_those_that_there_are() {
        let error = try_option("mtu", "1500").expect_err("no path MTU");
        assert_eq!(error, "mtu is `1500`; it must be 256, 512, 1024, 2048 or 4096");
        let error = try_option("color", "red").expect_err("no option");
        assert!(error.contains("`color`") && error.contains("rx_cpu, tx_cpu"), "{error}");
        for (key, _, _) in OPTIONS {
            for value in ["?", "maybe", "-1"] {
                assert!(try_option(key, value).is_err(), "{key}={value}");
            }
        }
        assert!(try_option("rt_priority", "100").is_err());
        let error = try_option("metadata", "on").expect_err("pages of 384 bytes, full of data");
        assert!(error.contains("512 bytes, a page has 384"), "{error}");
    }
}
