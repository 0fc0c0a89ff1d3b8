// One job: load, run every sample, time the first, report.

import CoreML
import Foundation

private func now() -> Int { Int(clock_gettime_nsec_np(CLOCK_UPTIME_RAW)) }

/// Runs the job folder and fills the result folder; the exit code of the contract.
func execute(job jobFolder: URL, result resultFolder: URL) -> Int32 {
    var result = RunResult()
    result.runtimeVersion = "Core ML of \(ProcessInfo.processInfo.operatingSystemVersionString)"
    var code: Int32 = 0
    do {
        try run(jobFolder, resultFolder, &result)
        result.status = "ok"
    } catch let failure as Failure {
        (result.stage, result.error, code) = (failure.stage, failure.message, failure.stage.exitCode)
    } catch {
        (result.stage, result.error, code) = (.invoke, "\(error)", Stage.invoke.exitCode)
    }
    result.peakMemoryBytes = peakMemoryBytes()
    do {
        try result.write(resultFolder)
    } catch {
        FileHandle.standardError.write(Data("result.json: \(error)\n".utf8))
        return Stage.output.exitCode
    }
    return code
}

private func run(_ jobFolder: URL, _ resultFolder: URL, _ result: inout RunResult) throws {
    let job = try Job.read(jobFolder)
    let artifact = try inside(jobFolder, job.artifact, .job)
    let configuration = try units(job.accelerator)
    let compiled = try compile(artifact)
    defer { if compiled != artifact { try? FileManager.default.removeItem(at: compiled) } }
    result.loadColdNs = try timed { _ = try load(compiled, configuration) }
    var loaded: MLModel?
    result.loadWarmNs = try timed { loaded = try load(compiled, configuration) }
    guard let model = loaded else { throw Failure(.prepare, "the model did not load") }
    let names = try matched(job, model)
    var state: [String: Data] = [:]
    for (number, sample) in job.samples.enumerated() {
        let inputs = try provider(sample, jobFolder, model, names, state)
        var outputs: MLFeatureProvider?
        result.sampleNs.append(try timed { outputs = try predict(model, inputs) })
        result.outputs.append(try write(outputs!, job, names, resultFolder, number, &state))
    }
    if job.minRuns > 0 { try time(job, model, try provider(job.samples[0], jobFolder, model, names, [:]), &result) }
    result.delegation = placement(compiled, configuration, job.accelerator)
}

private func units(_ accelerator: String) throws -> MLModelConfiguration {
    let configuration = MLModelConfiguration()
    switch accelerator {
    case "cpu": configuration.computeUnits = .cpuOnly
    case "gpu": configuration.computeUnits = .cpuAndGPU
    case "ane": configuration.computeUnits = .cpuAndNeuralEngine
    case "all": configuration.computeUnits = .all
    default: throw Failure(.prepare, "coreml has no accelerator \(accelerator); it has cpu, gpu, ane and all")
    }
    return configuration
}

private func compile(_ artifact: URL) throws -> URL {
    guard FileManager.default.fileExists(atPath: artifact.path) else { throw Failure(.job, "the artifact \(artifact.lastPathComponent) is absent") }
    if artifact.pathExtension == "mlmodelc" { return artifact }
    do {
        return try MLModel.compileModel(at: artifact)
    } catch {
        throw Failure(.model, "Core ML does not compile \(artifact.lastPathComponent): \(error.localizedDescription)")
    }
}

private func load(_ compiled: URL, _ configuration: MLModelConfiguration) throws -> MLModel {
    do {
        return try MLModel(contentsOf: compiled, configuration: configuration)
    } catch {
        throw Failure(.prepare, "Core ML does not load the model: \(error.localizedDescription)")
    }
}

/// The model's name for each name of the job. Raises when one is not there: tensors are never matched by shape.
private func matched(_ job: Job, _ model: MLModel) throws -> [String: String] {
    var names: [String: String] = [:]
    let inputs = model.modelDescription.inputDescriptionsByName, outputs = model.modelDescription.outputDescriptionsByName
    let sides: [(String, [String], Set<String>)] = [
        ("inputs", job.samples[0].map(\.name), Set(inputs.keys)), ("outputs", job.outputs.map(\.name), Set(outputs.keys)),
    ]
    for (side, wanted, known) in sides {
        let asked = wanted.map { job.runtimeNames[$0] ?? $0 }
        guard Set(asked).count == asked.count, known.isSuperset(of: asked), side == "outputs" || asked.count == known.count else {
            throw Failure(.prepare, "\(side): the job wants \(asked), but the runtime knows \(known.sorted())")
        }
        for (name, found) in zip(wanted, asked) { names["\(side) \(name)"] = found }
    }
    for (output, input) in job.stateFrom where names["outputs \(output)"] == nil || names["inputs \(input)"] == nil {
        throw Failure(.prepare, "state_from names \(output) and \(input), which are not both there")
    }
    return names
}

private func provider(
    _ sample: [TensorFile], _ folder: URL, _ model: MLModel, _ names: [String: String], _ state: [String: Data]
) throws -> MLDictionaryFeatureProvider {
    var values: [String: MLFeatureValue] = [:]
    for tensor in sample {
        guard let name = names["inputs \(tensor.name)"], let description = model.modelDescription.inputDescriptionsByName[name] else {
            throw Failure(.prepare, "a later sample names the input \(tensor.name)")
        }
        let data = try state[tensor.name] ?? readInput(tensor, folder)
        guard data.count == (try byteCount(tensor)) else { throw Failure(.invoke, "the state for \(tensor.name) has \(data.count) bytes") }
        values[name] = try feature(tensor, data, description)
    }
    return try MLDictionaryFeatureProvider(dictionary: values)
}

private func predict(_ model: MLModel, _ inputs: MLFeatureProvider) throws -> MLFeatureProvider {
    do {
        return try model.prediction(from: inputs)
    } catch {
        throw Failure(.invoke, "the prediction failed: \(error.localizedDescription)")
    }
}

private func write(
    _ outputs: MLFeatureProvider, _ job: Job, _ names: [String: String], _ folder: URL, _ sample: Int, _ state: inout [String: Data]
) throws -> [TensorFile] {
    var files: [TensorFile] = []
    for (index, spec) in job.outputs.enumerated() {
        guard let value = outputs.featureValue(for: names["outputs \(spec.name)"]!) else { throw Failure(.output, "no output \(spec.name)") }
        let (data, dtype, shape) = try rawBytes(spec.name, value)
        let file = String(format: "%03d-%d.raw", sample, index)
        do {
            try data.write(to: folder.appendingPathComponent(file))
        } catch {
            throw Failure(.output, "\(file): \(error.localizedDescription)")
        }
        if let input = job.stateFrom[spec.name] { state[input] = data }
        files.append(TensorFile(name: spec.name, dtype: dtype, shape: shape, file: file))
    }
    return files
}

/// Warm-up until steady, then runs until enough or out of time, as section 5 of the contract says.
private func time(_ job: Job, _ model: MLModel, _ inputs: MLFeatureProvider, _ result: inout RunResult) throws {
    for _ in 0..<job.warmupRuns {
        result.warmupNs.append(try timed { _ = try predict(model, inputs) })
        let last = result.warmupNs.suffix(3)
        if last.count == 3, Double(last.max()!) <= 1.05 * Double(last.min()!) { break }
    }
    let start = now()
    repeat {
        result.latencyNs.append(try timed { _ = try predict(model, inputs) })
    } while result.latencyNs.count < job.minRuns && Double(now() - start) < job.maxSeconds * 1e9
}

private func timed(_ work: () throws -> Void) rethrows -> Int {
    let start = now()
    try work()
    return now() - start
}

private func peakMemoryBytes() -> Int? {
    var usage = rusage()
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss : nil
}
