//! Float formats narrower than `f64`, from their definitions.

use disco_core::DType;

/// An IEEE-like format: a sign, an exponent, a mantissa.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// Number of bits after the binary point.
    pub(crate) mantissa: u32,
    bias: i32,
    /// The largest finite value's code, without its sign.
    largest: u64,
}

impl Format {
    /// The format of a float type; none for other types.
    pub(crate) const fn of(dtype: DType) -> Option<Self> {
        let (mantissa, bias, largest) = match dtype {
            DType::F8E4M3 => (3, 7, 0x7e),
            DType::F8E5M2 => (2, 15, 0x7b),
            DType::F16 => (10, 15, 0x7bff),
            DType::BF16 => (7, 127, 0x7f7f),
            DType::F32 => (23, 127, 0x7f7f_ffff),
            DType::F64 => (52, 1023, 0x7fef_ffff_ffff_ffff),
            _ => return None,
        };
        Some(Self { mantissa, bias, largest })
    }

    /// Half the distance of 1 to the next number: the largest relative error of one rounding.
    pub(crate) fn roundoff(self) -> f64 {
        power(-(self.mantissa as i32) - 1)
    }

    /// The smallest number above 0.
    pub(crate) fn smallest(self) -> f64 {
        power(1 - self.bias - self.mantissa as i32)
    }

    /// The code of `x`, rounded to nearest, ties to even. `x` is finite and in range.
    pub(crate) fn encode(self, x: f64) -> u64 {
        let sign = u64::from(x.is_sign_negative()) << self.sign_bit();
        if x == 0.0 {
            return sign;
        }
        let exponent = (((x.to_bits() >> 52) & 0x7ff) as i32 - 1023).max(1 - self.bias);
        let steps = (x.abs() / power(exponent - self.mantissa as i32)).round_ties_even() as u64;
        // A carry out of the mantissa increments the exponent.
        let code = (((exponent + self.bias - 1) as u64) << self.mantissa) + steps;
        sign | code.min(self.largest)
    }

    /// The number of a code.
    pub(crate) fn decode(self, code: u64) -> f64 {
        let magnitude = code & !(1 << self.sign_bit());
        if magnitude > self.largest {
            return if magnitude == self.largest + 1 && self.bias != 7 { f64::INFINITY } else { f64::NAN };
        }
        let fraction = (magnitude & ((1 << self.mantissa) - 1)) as f64;
        let exponent = (magnitude >> self.mantissa) as i32;
        let step = power(exponent.max(1) - self.bias - self.mantissa as i32);
        let whole = if exponent == 0 { 0.0 } else { (1u64 << self.mantissa) as f64 };
        let value = (whole + fraction) * step;
        if code >> self.sign_bit() == 0 { value } else { -value }
    }

    const fn sign_bit(self) -> u32 {
        match self.largest {
            0..=0xff => 7,
            0x100..=0xffff => 15,
            0x1_0000..=0xffff_ffff => 31,
            _ => 63,
        }
    }
}

/// 2 to the power of `exponent`, also below the normal numbers.
fn power(exponent: i32) -> f64 {
    match exponent {
        -1022.. => f64::from_bits(((1023 + exponent) as u64) << 52),
        _ => f64::from_bits(1u64 << (1074 + exponent).clamp(0, 51)),
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn format(dtype: DType) -> Format {
        Format::of(dtype).unwrap()
    }

    #[test]
    fn encode_inverts_decode_for_every_code() {
        for dtype in [DType::F8E4M3, DType::F8E5M2, DType::F16, DType::BF16] {
            let format = format(dtype);
            for code in (0..=format.largest).flat_map(|code| [code, code | 1 << format.sign_bit()]) {
                assert_eq!(format.encode(format.decode(code)), code, "{dtype} {code:#x}");
            }
        }
    }

    #[test]
    fn wider_formats_agree_with_rust_and_the_crate_half() {
        for bits in (0..0x7f80_0000u32).step_by(65_521) {
            let x = f32::from_bits(bits);
            assert_eq!(format(DType::F32).decode(bits.into()), f64::from(x));
            assert_eq!(format(DType::BF16).encode(x.into()) as u16, bf16::from_f32(x).to_bits().min(0x7f7f), "{x}");
            if x < 65504.0 {
                assert_eq!(format(DType::F16).encode(x.into()) as u16, f16::from_f32(x).to_bits(), "{x}");
            }
        }
        for x in [1.0f64, -0.1, 1e300, 5e-324, -0.0] {
            assert_eq!(format(DType::F64).encode(x), x.to_bits());
            assert_eq!(format(DType::F64).decode(x.to_bits()), x);
        }
    }

    #[test]
    fn nan_and_infinity_are_decoded() {
        assert!(format(DType::F8E4M3).decode(0x7f).is_nan());
        assert_eq!(format(DType::F8E5M2).decode(0x7c), f64::INFINITY);
        assert!(format(DType::F16).decode(0xfe00).is_nan());
    }
}
