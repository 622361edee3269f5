//! Every layout, saved and loaded by any number of workers, against plain slices.

use disco::checkpoint::{self, Layout};
use disco::{Builder, LaneSession, SessionExt as _, Tensor, block_on};
use proptest::test_runner::{Config, TestRunner};

use crate::{Kind, end, names, scattered};

crate::tests![
    tests: any_number_of_workers_loads_what_any_number_has_saved,
    every_dtype_keeps_its_bytes,
    parts_of_unequal_size_load_in_as_many_workers,
    tensors_of_groups_are_saved_beside_tensors_of_unequal_size,
    shards_are_plain_safetensors,
];

/// A world, by its groups and their size.
type Shape = (usize, usize);

/// The start and end of part `rank` of `ranks` along a dimension.
fn range(extent: usize, rank: usize, ranks: usize) -> (usize, usize) {
    (extent / ranks * rank, extent / ranks * (rank + 1))
}

/// The elements of a `rows × columns` matrix that a worker has in a layout, by plain slicing. Element (i, j) is
/// 100 i + j.
fn part(layout: Layout, (rows, columns): (usize, usize), worker: usize, (groups, group_size): Shape) -> Tensor {
    let (rank, ranks) = match layout {
        Layout::Replicated => (0, 1),
        layout if layout == Layout::split_in_group(0) || layout == Layout::split_in_group(1) => {
            (worker % group_size, group_size)
        }
        _ => (worker, groups * group_size),
    };
    let by_rows = layout == Layout::split(0) || layout == Layout::split_in_group(0);
    let ((top, bottom), (left, right)) = match layout {
        Layout::Replicated => ((0, rows), (0, columns)),
        _ if by_rows => (range(rows, rank, ranks), (0, columns)),
        _ => ((0, rows), range(columns, rank, ranks)),
    };
    let elements = (top..bottom).flat_map(|row| (left..right).map(move |column| (100 * row + column) as f64));
    Tensor::from_vec(elements.collect::<Vec<f64>>(), [bottom - top, right - left]).unwrap()
}

fn start((groups, group_size): Shape) -> LaneSession {
    Builder::threads(groups * group_size).groups(groups).start().unwrap()
}

fn any_number_of_workers_loads_what_any_number_has_saved(_: Kind) {
    let worlds: Vec<Shape> =
        (1..=6).flat_map(|n| (1..=n).filter(move |g| n % g == 0).map(move |g| (g, n / g))).collect();
    let layouts =
        [Layout::Replicated, Layout::split(0), Layout::split(1), Layout::split_in_group(0), Layout::split_in_group(1)];
    let world = proptest::sample::select(worlds);
    let entry = (
        proptest::sample::select(layouts.to_vec()),
        proptest::option::of(proptest::sample::select(layouts.to_vec())),
        1usize..3,
    );
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
                for (layout, _, factor) in &entries {
                    handles.push(scattered(&first, |worker| Some(part(*layout, matrix(*factor), worker, saved))).await);
                }
                let named = entries.iter().zip(&handles).enumerate();
                let named = named.map(|(index, ((layout, _, _), handle))| (format!("t{index}"), handle, *layout));
                checkpoint::save(&first, folder.path(), 7, named).await.unwrap().await.unwrap();
            });
            end(&first);
            let second = start(loaded);
            block_on(async {
                let requests = entries.iter().enumerate();
                let requests =
                    requests.map(|(index, (layout, other, _))| (format!("t{index}"), other.unwrap_or(*layout)));
                let requests: Vec<_> = requests.collect();
                let found = checkpoint::load_only(&second, folder.path(), requests).await.unwrap().unwrap();
                for (index, (layout, other, factor)) in entries.iter().enumerate() {
                    let handle = found.tensor(&format!("t{index}")).unwrap();
                    let tensors: Vec<Tensor> = second.get_all_as(handle).await.unwrap();
                    for (worker, tensor) in tensors.iter().enumerate() {
                        let wanted = part(other.unwrap_or(*layout), matrix(*factor), worker, loaded);
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
                for found in session.get_all_as::<Tensor>(handle).await.unwrap() {
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
        let tensors: Vec<Tensor> = session.get_all_as(loaded.tensor("rows").unwrap()).await.unwrap();
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
        let tensors: Vec<Tensor> = session.get_all_as(loaded.tensor("rows").unwrap()).await.unwrap();
        let found: Vec<Vec<i32>> = tensors.iter().map(|tensor| tensor.to_vec().unwrap()).collect();
        assert_eq!(found, [[0, 0, 1, 1, 1, 1], [2; 6]]);
    });
    end(&session);
}

fn tensors_of_groups_are_saved_beside_tensors_of_unequal_size(_: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let session = start((2, 2));
    block_on(async {
        let own = scattered(&session, |worker| Some(crate::numbers(0, 100 / (worker + 1)))).await;
        let split = scattered(&session, |worker| Some(crate::numbers(40 * (worker % 2) as i32, 40))).await;
        let entries = [("own", &own, Layout::PerWorker), ("split", &split, Layout::split_in_group(0))];
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
