//! Every layout, saved and loaded by any number of workers, against plain slices.

use disco::checkpoint::{self, Layout, Request};
use disco::{Builder, LaneSession, Mesh, Scope, Tensor, block_on};
use proptest::test_runner::{Config, TestRunner};

use crate::{Kind, end, names, scattered};

crate::tests![
    tests: any_number_of_workers_loads_what_any_number_has_saved,
    every_dtype_keeps_its_bytes,
    parts_of_unequal_size_load_in_as_many_workers,
    a_mesh_that_does_not_fit_is_refused_at_the_save_and_at_the_load,
    tensors_of_groups_are_saved_beside_tensors_of_unequal_size,
    shards_are_plain_safetensors,
];

/// A world, by its groups and their size.
type Shape = (usize, usize);

/// The start and end of part `rank` of `ranks` along a dimension.
fn range(extent: usize, rank: usize, ranks: usize) -> (usize, usize) {
    (extent / ranks * rank, extent / ranks * (rank + 1))
}

/// How a matrix is divided.
#[derive(Clone, Copy, Debug)]
enum Case {
    Replicated,
    Split { dim: usize, over: Over },
}

/// The workers that a matrix is divided over. The mesh has the axes `x`, the groups, and `y`, the workers of a group.
#[derive(Clone, Copy, Debug)]
enum Over {
    World,
    Group,
    X,
    YX,
}

impl Case {
    fn layout(self, (groups, group_size): Shape) -> Layout {
        let mesh = Mesh::new([("x", groups), ("y", group_size)]).unwrap();
        match self {
            Self::Replicated => Layout::Replicated,
            Self::Split { dim, over: Over::World } => Layout::split(dim),
            Self::Split { dim, over: Over::Group } => Layout::split_over(dim, Scope::Group),
            Self::Split { dim, over: Over::X } => Layout::split_over(dim, mesh.along(&["x"]).unwrap()),
            Self::Split { dim, over: Over::YX } => Layout::split_over(dim, mesh.along(&["y", "x"]).unwrap()),
        }
    }

    /// Whether a session of other workers can load the layout.
    fn is_of_any_world(self) -> bool {
        !matches!(self, Self::Split { over: Over::X | Over::YX, .. })
    }
}

/// The elements of a `rows × columns` matrix that a worker has, by plain slicing. Element (i, j) is 100 i + j.
fn part(case: Case, (rows, columns): (usize, usize), worker: usize, (groups, group_size): Shape) -> Tensor {
    let (x, y, workers) = (worker / group_size, worker % group_size, groups * group_size);
    let (mut vertical, mut horizontal) = ((0, rows), (0, columns));
    if let Case::Split { dim, over } = case {
        let (rank, ranks) = match over {
            Over::World => (worker, workers),
            Over::Group => (y, group_size),
            Over::X => (x, groups),
            Over::YX => (y * groups + x, workers),
        };
        match dim {
            0 => vertical = range(rows, rank, ranks),
            _ => horizontal = range(columns, rank, ranks),
        }
    }
    let ((top, bottom), (left, right)) = (vertical, horizontal);
    let elements = (top..bottom).flat_map(|row| (left..right).map(move |column| (100 * row + column) as f64));
    Tensor::from_vec(elements.collect::<Vec<f64>>(), [bottom - top, right - left]).unwrap()
}

fn start((groups, group_size): Shape) -> LaneSession {
    Builder::threads(groups * group_size).groups(groups).start().unwrap()
}

fn any_number_of_workers_loads_what_any_number_has_saved(_: Kind) {
    let worlds: Vec<Shape> =
        (1..=6).flat_map(|n| (1..=n).filter(move |g| n % g == 0).map(move |g| (g, n / g))).collect();
    let overs = [Over::World, Over::Group, Over::X, Over::YX];
    let split = overs.into_iter().flat_map(|over| [0, 1].map(|dim| Case::Split { dim, over }));
    let cases: Vec<_> = [Case::Replicated].into_iter().chain(split).collect();
    let world = proptest::sample::select(worlds);
    let entry =
        (proptest::sample::select(cases.clone()), proptest::option::of(proptest::sample::select(cases)), 1usize..3);
    let strategy = (world.clone(), world, proptest::collection::vec(entry, 1..6));
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&strategy, |(saved, loaded, entries)| {
            let folder = tempfile::tempdir().unwrap();
            // All numbers of workers divide 60.
            let matrix = |factor: usize| (60 * factor, 60);
            let first = start(saved);
            block_on(async {
                let mut handles = Vec::new();
                for (case, _, factor) in &entries {
                    handles.push(scattered(&first, |worker| Some(part(*case, matrix(*factor), worker, saved))).await);
                }
                let named = entries.iter().zip(&handles).enumerate();
                let named =
                    named.map(|(index, ((case, _, _), handle))| (format!("t{index}"), handle, case.layout(saved)));
                checkpoint::save(&first, folder.path(), 7, named).await.unwrap().await.unwrap();
            });
            end(&first);
            let second = start(loaded);
            block_on(async {
                let request = |(index, (case, other, _)): (usize, &(Case, Option<Case>, usize))| {
                    let name = format!("t{index}");
                    match other {
                        None if case.is_of_any_world() || saved == loaded => Request::from(name),
                        other => (name, other.unwrap_or(*case).layout(loaded)).into(),
                    }
                };
                let requests: Vec<_> = entries.iter().enumerate().map(request).collect();
                let found = checkpoint::load_only(&second, folder.path(), requests).await.unwrap().unwrap();
                for (index, (case, other, factor)) in entries.iter().enumerate() {
                    let handle = found.tensor(&format!("t{index}")).unwrap();
                    let tensors: Vec<Tensor> = second.get_all(handle).await.unwrap();
                    for (worker, tensor) in tensors.iter().enumerate() {
                        let wanted = part(other.unwrap_or(*case), matrix(*factor), worker, loaded);
                        assert_eq!(tensor.shape(), wanted.shape());
                        assert_eq!(tensor.to_vec::<f64>().unwrap(), wanted.to_vec::<f64>().unwrap());
                    }
                }
            });
            end(&second);
            Ok(())
        })
        .unwrap();
}

fn every_dtype_keeps_its_bytes(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let session = start((1, 3));
    // Also tensors without axes and without elements.
    let shapes: [&[usize]; 3] = [&[5, 3], &[], &[2, 0]];
    let tensor = |dtype: disco::DType, shape: &[usize]| {
        let tensor = Tensor::zeros(dtype, shape).unwrap();
        tensor.bytes_mut().unwrap().iter_mut().zip(1..).for_each(|(byte, number)| *byte = number % 2);
        tensor
    };
    block_on(async {
        let mut handles = Vec::new();
        for dtype in disco_core::DType::all() {
            for shape in shapes {
                let name = format!("{dtype}{shape:?}");
                handles.push((name, crate::replicated(&session, &tensor(dtype, shape)).await));
            }
        }
        let entries = handles.iter().map(|(name, handle)| (name.as_str(), handle));
        checkpoint::save(&session, folder.path(), 0, entries).await.unwrap().await.unwrap();
        let loaded = checkpoint::load(&session, folder.path()).await.unwrap().unwrap();
        for dtype in disco_core::DType::all() {
            for shape in shapes {
                let handle = loaded.tensor(&format!("{dtype}{shape:?}")).unwrap();
                let wanted = tensor(dtype, shape);
                for found in session.get_all::<Tensor>(handle).await.unwrap() {
                    assert_eq!((found.dtype(), found.dims()), (dtype, shape.to_vec()));
                    assert_eq!(found.bytes().unwrap()[..], wanted.bytes().unwrap()[..]);
                }
            }
        }
    });
    end(&session);
}

fn parts_of_unequal_size_load_in_as_many_workers(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let session = start((1, 3));
    let rows = |worker: usize| Tensor::from_vec(vec![worker as i32; 2 * (worker + 1)], [worker + 1, 2]).unwrap();
    block_on(async {
        let handle = scattered(&session, |worker| Some(rows(worker))).await;
        checkpoint::save(&session, folder.path(), 4, [("rows", &handle, Layout::split(0))])
            .await
            .unwrap()
            .await
            .unwrap();
        let loaded = checkpoint::load(&session, folder.path()).await.unwrap().unwrap();
        let tensors: Vec<Tensor> = session.get_all(loaded.tensor("rows").unwrap()).await.unwrap();
        assert_eq!(tensors.iter().map(Tensor::dims).collect::<Vec<_>>(), [[1, 2], [2, 2], [3, 2]]);
    });
    end(&session);
    let session = start((1, 4));
    let error = block_on(checkpoint::load(&session, folder.path())).unwrap_err().to_string();
    let path = folder.path().join("step-000004");
    assert_eq!(
        error,
        format!(
            "`{}`: tensor `rows` of shape [6, 2] can't be split over 4 ranks: dimension 0 has 6 elements, which 4 does not \
             divide",
            path.display()
        )
    );
    end(&session);
    // Two workers get three rows each.
    let session = start((1, 2));
    block_on(async {
        let loaded = checkpoint::load(&session, folder.path()).await.unwrap().unwrap();
        let tensors: Vec<Tensor> = session.get_all(loaded.tensor("rows").unwrap()).await.unwrap();
        let found: Vec<Vec<i32>> = tensors.iter().map(|tensor| tensor.to_vec().unwrap()).collect();
        assert_eq!(found, [[0, 0, 1, 1, 1, 1], [2; 6]]);
    });
    end(&session);
}

fn a_mesh_that_does_not_fit_is_refused_at_the_save_and_at_the_load(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step-000001");
    let over = |mesh: &str| Layout::split_over(0, mesh.parse::<Mesh>().unwrap().along(&["tp"]).unwrap());
    let session = start((1, 4));
    let rows = |worker: usize| crate::numbers(40 * (worker % 2) as i32, 40);
    block_on(async {
        let handle = scattered(&session, |worker| Some(rows(worker))).await;
        let entries = |mesh| [("rows", &handle, over(mesh))];
        let error = checkpoint::save(&session, folder.path(), 1, entries("dp=2,tp=3")).await.unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "`{}`: tensor `rows`: it can't be split along dimension 0 over `tp of dp=2,tp=3`: mesh `dp=2,tp=3` has 6 \
                 places, and the session has 4 workers; `dp=2,tp=2` or `dp=1,tp=4` would fit",
                path.display()
            )
        );
        checkpoint::save(&session, folder.path(), 1, entries("dp=2,tp=2")).await.unwrap().await.unwrap();
        let index = std::fs::read_to_string(path.join("index.json")).unwrap();
        assert!(index.contains(r#"{"split":{"dim":0,"over":"tp of dp=2,tp=2"}}"#), "{index}");
        // Two copies; the workers of one write it.
        assert_eq!(names(&path).len(), 3);
    });
    end(&session);
    let session = start((1, 2));
    block_on(async {
        let error = checkpoint::load(&session, folder.path()).await.unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "`{}`: tensor `rows`: it can't be loaded split along dimension 0 over `tp of dp=2,tp=2`: mesh `dp=2,tp=2` \
                 has 4 places, and the session has 2 workers; `dp=1,tp=2` or `dp=2,tp=1` would fit; choose its layout with \
                 `load_only`",
                path.display()
            )
        );
        let loaded = checkpoint::load_only(&session, folder.path(), [("rows", over("dp=1,tp=2"))]).await;
        let expected = [0, 1].map(|worker| rows(worker).to_vec::<i32>().unwrap());
        assert_eq!(crate::values(&session, loaded.unwrap().unwrap().tensor("rows").unwrap()).await, expected);
    });
    end(&session);
}

fn tensors_of_groups_are_saved_beside_tensors_of_unequal_size(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let session = start((2, 2));
    block_on(async {
        let own = scattered(&session, |worker| Some(crate::numbers(0, 100 / (worker + 1)))).await;
        let split = scattered(&session, |worker| Some(crate::numbers(40 * (worker % 2) as i32, 40))).await;
        let entries = [("own", &own, Layout::PerWorker), ("split", &split, Layout::split_over(0, Scope::Group))];
        checkpoint::save(&session, folder.path(), 1, entries).await.unwrap().await.unwrap();
        let loaded = checkpoint::load(&session, folder.path()).await.unwrap().unwrap();
        let expected = [0, 1, 0, 1].map(|rank| crate::numbers(40 * rank, 40).to_vec::<i32>().unwrap());
        assert_eq!(crate::values(&session, loaded.tensor("split").unwrap()).await, expected);
    });
    end(&session);
}

fn shards_are_plain_safetensors(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let session = start((1, 2));
    block_on(async {
        let bytes = crate::replicated(&session, &Tensor::from_vec(vec![1u8, 2, 3], 3).unwrap()).await;
        let split = scattered(&session, |worker| Some(crate::numbers(10 * worker as i32, 2))).await;
        let entries = [("bytes", &bytes, Layout::Replicated), ("split", &split, Layout::split(0))];
        checkpoint::save(&session, folder.path(), 1, entries).await.unwrap().await.unwrap();
    });
    end(&session);
    let checkpoint = folder.path().join("step-000001");
    assert_eq!(names(&checkpoint), ["index.json", "worker-0-of-2.safetensors", "worker-1-of-2.safetensors"]);
    let mut found = Vec::new();
    for worker in 0..2 {
        let bytes = std::fs::read(checkpoint.join(format!("worker-{worker}-of-2.safetensors"))).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors: Vec<_> = file.iter().collect();
        tensors.sort_unstable_by_key(|(name, _)| *name);
        found.extend(
            tensors
                .iter()
                .map(|(name, tensor)| (worker, (*name).to_owned(), tensor.shape().to_vec(), tensor.data().to_vec())),
        );
        for (_, tensor) in tensors {
            let address = tensor.data().as_ptr().addr() - bytes.as_ptr().addr();
            assert!(address.is_multiple_of(tensor.dtype().bitsize() / 8), "aligned in the file");
        }
    }
    let split = |first: u8| [first, 0, 0, 0, first + 1, 0, 0, 0].to_vec();
    assert_eq!(
        found,
        [
            (0, "bytes".into(), vec![3], vec![1, 2, 3]),
            (0, "split".into(), vec![2], split(0)),
            (1, "split".into(), vec![2], split(10)),
        ]
    );
}
