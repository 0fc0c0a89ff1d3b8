// Which compute device Core ML plans for each operator (iOS 17.4, macOS 14.4 and later); older systems cannot tell.

import CoreML
import Foundation

func placement(_ compiled: URL, _ configuration: MLModelConfiguration, _ accelerator: String) -> Delegation? {
    guard #available(iOS 17.4, macOS 14.4, *) else { return nil }
    let done = DispatchSemaphore(value: 0)
    let found = Box<Delegation>()
    Task.detached {
        defer { done.signal() }
        guard let plan = try? await MLComputePlan.load(contentsOf: compiled, configuration: configuration) else { return }
        guard case .program(let program) = plan.modelStructure, let main = program.functions["main"] else { return }
        found.value = count(plan, main.block, accelerator)
    }
    done.wait()
    return found.value
}

private final class Box<Value>: @unchecked Sendable {
    var value: Value?
}

@available(iOS 17.4, macOS 14.4, *)
private func count(_ plan: MLComputePlan, _ block: MLModelStructure.Program.Block, _ accelerator: String) -> Delegation {
    var taken: [String] = [], left: [String] = [], partitions = 0, before = false
    for operation in block.operations where operation.operatorName != "const" && !operation.operatorName.hasSuffix(".const") {
        let name = operation.operatorName.split(separator: ".").last.map(String.init) ?? operation.operatorName
        guard let usage = plan.deviceUsage(for: operation) else { continue }
        let there: Bool
        switch usage.preferred {
        case .neuralEngine: there = accelerator == "ane" || accelerator == "all"
        case .gpu: there = accelerator == "gpu"
        default: there = false
        }
        if there { taken.append(name) } else { left.append(name) }
        if there && !before { partitions += 1 }
        before = there
    }
    let delegate = accelerator == "cpu" ? "" : accelerator == "gpu" ? "gpu" : "ane"
    let kinds = { (names: [String]) in Array(Set(names)).sorted() }
    return Delegation(
        delegate: delegate, nodes: taken.count, total: taken.count + left.count, partitions: partitions, operators: kinds(taken), fallback: kinds(left))
}
