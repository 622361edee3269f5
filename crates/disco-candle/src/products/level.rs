//! The vector instructions of this processor.

/// The vector instructions that the kernels use. All levels give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// None.
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The same, AVX-512, also for bytes, and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// All levels of this processor, the best one last.
    pub(crate) fn all() -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let has_avx512 = has_avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vnni");
            let levels = [(Self::Scalar, true), (Self::Avx2, has_avx2), (Self::Avx512, has_avx512)];
            levels.into_iter().filter(|(_, is_there)| *is_there).map(|(level, _)| level).collect()
        }
        #[cfg(not(target_arch = "x86_64"))]
        vec![Self::Scalar]
    }

    /// The best level of this processor.
    pub(crate) fn detect() -> Self {
        Self::all().pop().unwrap_or(Self::Scalar)
    }
}
